#include "rannc/partition/micro_batches.h"

#include <utility>

#include "partition/notes.h"
#include "partition/predictions.h"
#include "partition/time_parts.h"
#include "rannc/partition/evaluate.h"

namespace rannc::partition {

plan::Plan with_micro_batches(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                              const Request& request, plan::Plan plan, int64_t count) {
  plan.micro_batches = count;
  const Evaluation evaluation = evaluate(profile, cluster, request, plan);
  if (!evaluation.problems.empty()) {
    plan::Plan impossible;
    impossible.feasible = false;
    impossible.reason = evaluation.problems.front();
    return impossible;
  }
  plan = with_predictions(std::move(plan), evaluation);
  plan.notes = changed_notes(plan, cluster, request, evaluation,
                             time_parts(profile, cluster, request, plan, evaluation.iteration_ns));
  const std::vector<std::string> of_stages = stage_notes(profile, plan, evaluation);
  for (size_t k = 0; k < plan.stages.size(); ++k) plan.stages[k].notes = of_stages[k];
  return plan;
}

}  // namespace rannc::partition
