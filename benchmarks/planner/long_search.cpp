#include "planner/long_search.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/block_model.h"
#include "partition/improve/anneal.h"
#include "partition/improve/refine.h"
#include "partition/problem/search_space.h"

namespace rannc::benchmarks {
namespace {

using partition::NodePlan;
using partition::Scored;

/// The plan as a draft of single nodes.
Scored by_node(const Problem& problem, const NodePlan& plan) {
  Scored scored = plan.scored;
  scored.draft.stage_of.assign(problem.profile.nodes.size(), 0);
  for (size_t s = 0; s < plan.nodes.size(); ++s) {
    for (const uint32_t node : plan.nodes[s]) scored.draft.stage_of[node] = static_cast<int>(s);
  }
  return scored;
}

}  // namespace

Answer anneal(const Problem& problem, Answer answer, int64_t trials, uint64_t seed) {
  std::vector<NodePlan> starts = answer.others;
  std::ranges::stable_sort(starts, {},
                           [](const NodePlan& plan) { return plan.scored.figures.iteration_ns; });
  if (starts.size() > 8) starts.resize(8);
  const partition::SearchSpace space =
      partition::search_space(problem.request, problem.cluster, {});
  const auto nodes = partition::single_blocks(problem.profile.nodes.size());
  const partition::BlockCosts costs(problem.profile, nodes);
  const partition::BlockModel model(problem.profile, problem.request, costs);
  partition::Assessor assessor(model, problem.cluster, problem.request);
  partition::Stop stop(0, nullptr);
  for (size_t k = 0; k < starts.size() + 4; ++k) {
    // The last ones go on from the best.
    const NodePlan& start = k < starts.size() ? starts[k] : answer.plan;
    if (start.nodes.empty()) continue;
    partition::Best best(1);
    const partition::AnnealOptions options{
        .trials = trials, .hot = k % 2 == 0 ? 0.03 : 0.1, .seed = seed + k};
    Scored found = anneal(assessor, space, by_node(problem, start), options, stop, best);
    found = refine(assessor, space, found, {}, stop, best);
    if (found.figures.iteration_ns >= answer.ns) continue;
    answer.ns = found.figures.iteration_ns;
    answer.plan = partition::to_node_plan(found, nodes);
  }
  return answer;
}

}  // namespace rannc::benchmarks
