#pragma once

#include <cstdint>

namespace rannc::partition {

/// What the account of memory of version 2 (docs/planner-files.md, section 7) needs to know of a
/// stage, at the rows of its ranks.
struct StageAccount {
  double state_bytes = 0;  ///< parameters, and this rank's share of the optimizer's state
  double gradient_bytes = 0;
  double saved_bytes = 0;
  double first_bytes = 0;  ///< largest in its first backward: saved, gradients, workspace
  double later_bytes = 0;  ///< in the others, without gradients
  double graph_in_bytes = 0;
  double in_bytes = 0, out_bytes = 0;  ///< values from and for other stages
  double in_gradient_bytes = 0, out_gradient_bytes = 0;

  /// What a micro-batch in flight keeps.
  [[nodiscard]] double kept_bytes(bool recompute) const {
    return recompute ? in_bytes + graph_in_bytes : saved_bytes;
  }
};

/// The most that a rank with this stage alone holds, along its order of actions under gpipe or
/// 1f1b, in which it has `in_flight` micro-batches. In closed form: O(1).
[[nodiscard]] double peak_bytes(const StageAccount& stage, bool recompute, int64_t in_flight,
                                int64_t micro_batches);

}  // namespace rannc::partition
