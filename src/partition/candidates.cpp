#include "rannc/partition/candidates.h"

#include <utility>

#include "partition/evaluate/write_notes.h"

namespace rannc::partition {

plan::Plan completed(const predict::StepModel& step, plan::Plan plan) {
  plan = step.predict(std::move(plan));
  const int64_t rows = *plan.made_for.global_batch;
  plan = plan::with_summary(std::move(plan), step.graph(), rows);
  plan.notes = with_memory_of(plan.notes, step.cluster());
  return plan;
}

plan::Plan with_trials(plan::Plan plan, const std::vector<TriedPlan>& arrangements,
                       const std::vector<TriedPlan>& numbers) {
  plan.notes = with_trial_notes(plan.notes, arrangements, numbers);
  return plan;
}

}  // namespace rannc::partition
