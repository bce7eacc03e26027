#pragma once

#include "rannc/partition/evaluate.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// What a plan's file says of a stage: rounded, as section 5 of docs/planner-files.md demands.
[[nodiscard]] plan::Prediction rounded(const StageEvaluation& stage);

/// `plan` with the times and bytes of `evaluation`.
[[nodiscard]] plan::Plan with_predictions(plan::Plan plan, const Evaluation& evaluation);

}  // namespace rannc::partition
