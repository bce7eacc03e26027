#pragma once

#include <cstdint>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::partition {

/// All values from one stage to a later one, together.
struct StageTransfer {
  int from = 0, to = 0;
  double forward_ns = 0, backward_ns = 0;
  bool has_backward = false;
};

struct Pipeline {
  plan::Schedule schedule = plan::Schedule::gpipe;
  int groups = 1;  ///< stage s runs on group s % groups
  int64_t micro_batches = 1;
  std::vector<double> forward_ns, backward_ns;  ///< [stage] of one action
  std::vector<StageTransfer> transfers;
};

/// One compute action of a group.
struct ComputeAction {
  int stage = 0;
  int64_t micro_batch = 0;
  bool backward = false;
};
/// Action `position` of group `group` (of 2 * micro_batches * stages / groups).
[[nodiscard]] ComputeAction action_at(const Pipeline& pipeline, int group, int64_t position);

/// The end of each stage's last backward by the simulation of section 5 of docs/planner-files.md,
/// written again from that page: shares nothing with partition::evaluate.
/// O(stages * micro-batches + transfers * micro-batches).
[[nodiscard]] std::vector<double> last_backwards(const Pipeline& pipeline);

/// No plan with these figures ends earlier: for each stage, the way to it, its own work, and the
/// way back. O(stages + transfers). Not for interleaved stages, where it is each group's work.
[[nodiscard]] double pipeline_bound_ns(const Pipeline& pipeline);

}  // namespace rannc::partition
