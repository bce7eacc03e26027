#include "rannc/partition/other_plans.h"

#include <utility>

#include "partition/candidates/memory_limit.h"
#include "partition/evaluate/write_notes.h"
#include "rannc/partition/evaluate.h"
#include "rannc/util/whole.h"

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
  return described(profile, cluster, request, std::move(plan), evaluation);
}

Found plan_of_arrangement(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                          const Request& request, const PlannerOptions& options, const Found& found,
                          const Arrangement& arrangement) {
  Request narrower = request;
  narrower.force.stages = static_cast<int>(arrangement.replicas.size());
  narrower.force.replicas = arrangement.replicas;
  narrower.force.schedule = arrangement.schedule;
  narrower.force.interleave = arrangement.interleave;
  plan::Plan plan = make_plan(profile, cluster, narrower, options);
  if (!plan.feasible) return {std::move(plan), {}};
  plan.notes = search_notes(found.plan, plan);
  const Evaluation evaluation = evaluate(profile, cluster, request, plan);
  Found result{described(profile, cluster, request, std::move(plan), evaluation), {}};
  result.runners_up.push_back({.arrangement = arrangement_of(found.plan),
                               .iteration_ns = found.plan.iteration_ns,
                               .peak_bytes = whole(peak_bytes(found.plan))});
  for (const RunnerUp& other : found.runners_up) {
    if (other.arrangement != arrangement) result.runners_up.push_back(other);
  }
  return result;
}

}  // namespace rannc::partition
