#include "partition/evaluate/describe.h"

#include <utility>

#include "partition/evaluate/predictions.h"
#include "partition/evaluate/time_parts.h"
#include "partition/evaluate/write_notes.h"

namespace rannc::partition {
namespace {

/// All but the notes of the plan itself.
plan::Plan with_verdict(const cost::GraphProfile& profile, const Request& request, plan::Plan plan,
                        const Evaluation& evaluation) {
  plan = with_predictions(std::move(plan), evaluation);
  plan.made_for = {.global_batch = request.global_batch};
  plan.step = {};
  plan.bucket_bytes = {};
  plan.shard_optimizer = request.shard_optimizer;
  const std::vector<std::string> of_stages = stage_notes(profile, plan, evaluation);
  for (size_t k = 0; k < plan.stages.size(); ++k) plan.stages[k].notes = of_stages[k];
  return plan;
}

}  // namespace

plan::Plan described(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                     const Request& request, plan::Plan plan, const Evaluation& evaluation) {
  plan = with_verdict(profile, request, std::move(plan), evaluation);
  const TimeParts parts = time_parts(profile, cluster, request, plan, evaluation.iteration_ns);
  plan.notes = changed_notes(plan, cluster, request, evaluation, parts);
  return plan;
}

plan::Plan described(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                     const Request& request, plan::Plan plan, const Evaluation& evaluation,
                     const SearchReport& report) {
  plan = with_verdict(profile, request, std::move(plan), evaluation);
  plan.notes = make_notes(cluster, request, evaluation, report);
  return plan;
}

}  // namespace rannc::partition
