#include <algorithm>
#include <map>

#include "plan/routes.h"

namespace rannc::plan {

std::vector<Reduction> reductions(const ir::Graph& graph, const Placement& placement,
                                  const std::vector<std::vector<Rank>>& stage_ranks) {
  // Of all outputs, whatever this Program returns: a rank that holds a parameter for another one
  // must see the same gradient.
  const auto taken = taken_from_outside(graph, placement, graph.outputs);
  std::map<ir::ValueId, std::vector<int>> stages_of;
  for (int stage = 0; stage < static_cast<int>(taken.size()); ++stage) {
    for (ir::ValueId value : taken[stage]) {
      if (graph[value].kind != ir::ValueKind::parameter || !graph[value].requires_grad) continue;
      stages_of[value].push_back(stage);
    }
  }

  std::map<std::vector<int>, Reduction> sets;  // by stages; the ranks follow from them
  for (const auto& [parameter, stages] : stages_of) {
    sets[stages].parameters.push_back(parameter);
  }

  std::vector<Reduction> own, tied;
  for (auto& [stages, reduction] : sets) {
    reduction.stages = stages;
    for (int stage : stages) {
      reduction.ranks.insert(reduction.ranks.end(), stage_ranks[stage].begin(),
                             stage_ranks[stage].end());
    }
    std::ranges::sort(reduction.ranks);
    const auto repeats = std::ranges::unique(reduction.ranks);
    reduction.ranks.erase(repeats.begin(), repeats.end());
    if (reduction.ranks.size() < 2) continue;
    (stages.size() == 1 ? own : tied).push_back(std::move(reduction));
  }

  std::vector<Reduction> ordered(own.rbegin(), own.rend());
  ordered.insert(ordered.end(), tied.begin(), tied.end());
  return ordered;
}

}  // namespace rannc::plan
