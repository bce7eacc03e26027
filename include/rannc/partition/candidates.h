#pragma once

#include <cstdint>
#include <vector>

#include "rannc/partition/planner.h"
#include "rannc/plan/plan.h"
#include "rannc/predict/step_model.h"

// Plans of a training job: what the planner says of them, and what the job itself knows.
namespace rannc::partition {

/// `plan`, an answer of find_plan() for the job of `step`, as the job runs and saves it: with its
/// modules, with what `step` predicts, and with the memory of a device. Throws PlanError where the
/// model refuses the plan, such as a share in which there is nothing to normalise.
[[nodiscard]] plan::Plan completed(const predict::StepModel& step, plan::Plan plan);

/// A plan that ran before the first step.
struct TriedPlan {
  Arrangement arrangement;
  int64_t micro_batches = 1;
  double run_ns = 0;  ///< the shortest of its runs
};

/// `plan`, with notes of what ran: plans of several arrangements, and those of one arrangement with
/// several numbers of micro-batches. What ran alone was compared with nothing, and is not noted.
[[nodiscard]] plan::Plan with_trials(plan::Plan plan, const std::vector<TriedPlan>& arrangements,
                                     const std::vector<TriedPlan>& numbers);

}  // namespace rannc::partition
