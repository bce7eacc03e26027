#pragma once

#include <vector>

#include "plan/lower/compute_order.h"
#include "plan/show/notes.h"
#include "rannc/plan/plan.h"

namespace rannc::plan {

/// A forward or backward with its times.
struct TimedCompute {
  Compute compute;
  double begin_ns = 0, end_ns = 0;
};

/// What each group of ranks computes when, by section 5 of docs/planner-files.md, from the plan's
/// predictions. Stages without a transfer between them do not wait for each other. Throws
/// PlanError: a prediction is missing, the stages do not go with the schedule, or there are too
/// many micro-batches to draw.
[[nodiscard]] std::vector<std::vector<TimedCompute>> compute_times(
    const Plan& plan, const std::vector<TransferNote>& transfers);

/// For plans without notes: every stage feeds the next one, in no time.
[[nodiscard]] std::vector<TransferNote> chain_of(const Plan& plan);

}  // namespace rannc::plan
