#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "plan/lower/routes.h"

namespace rannc::plan {

std::vector<Reduction> reductions(const ir::Graph& graph, const Placement& placement,
                                  const Plan& plan, const ParameterHolders& holders) {
  // Of all outputs, whatever this Program returns: a rank that holds a parameter for another one
  // must see the same gradient.
  const auto taken = taken_from_outside(graph, placement, graph.outputs);
  std::map<ir::ValueId, std::vector<int>> stages_of;
  for (int stage = 0; stage < static_cast<int>(taken.size()); ++stage) {
    for (ir::ValueId value : taken[stage]) {
      if (graph[value].kind != ir::ValueKind::parameter || !graph[value].requires_grad) continue;
      if (std::ranges::count(plan.stages[stage].shared, graph[value].name)) continue;
      stages_of[value].push_back(stage);
    }
  }

  std::map<std::pair<std::vector<int>, std::vector<Rank>>, Reduction> sets;  // by stages and ranks
  for (const auto& [parameter, stages] : stages_of) {
    std::vector<Rank> ranks;
    for (int stage : stages) {
      const std::vector<Rank>& of_stage = plan.stages[stage].ranks;
      ranks.insert(ranks.end(), of_stage.begin(), of_stage.end());
    }
    if (const auto others = holders.find(graph[parameter].name); others != holders.end()) {
      ranks.insert(ranks.end(), others->second.begin(), others->second.end());
    }
    std::ranges::sort(ranks);
    const auto repeats = std::ranges::unique(ranks);
    ranks.erase(repeats.begin(), repeats.end());
    sets[{stages, ranks}].parameters.push_back(parameter);
  }

  std::vector<Reduction> own, tied;
  for (auto& [key, reduction] : sets) {
    std::tie(reduction.stages, reduction.ranks) = key;
    if (reduction.ranks.size() < 2) continue;
    (reduction.stages.size() == 1 ? own : tied).push_back(std::move(reduction));
  }

  std::vector<Reduction> ordered(own.rbegin(), own.rend());
  ordered.insert(ordered.end(), tied.begin(), tied.end());
  return ordered;
}

}  // namespace rannc::plan
