#pragma once

#include <cstdint>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::plan {

/// One forward or backward of a micro-batch in a stage.
struct Compute {
  bool forward = true;
  int stage = 0;
  int micro_batch = 0;
  friend bool operator==(const Compute&, const Compute&) = default;
};

/// What the ranks of one group compute, in order; section 5 of docs/planner-files.md. A group holds
/// one stage, or with `interleave` = v the v stages group, group + p, ... of p = stages / v groups.
/// Without training: the forwards of the same order.
[[nodiscard]] std::vector<Compute> compute_order(Schedule schedule, int stages, int interleave,
                                                 int micro_batches, int group, bool training);

}  // namespace rannc::plan
