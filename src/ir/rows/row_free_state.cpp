#include <set>
#include <string_view>

#include "ir/effects.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {

std::vector<ValueId> row_free_state(const Graph& graph) {
  const std::vector<bool> dependent = depends_on_rows(graph);
  std::set<std::string_view> normalisations;
  for (const RunningStatistic& statistic : running_statistics(graph)) {
    normalisations.insert(graph[statistic.node].module);
  }
  std::set<uint32_t> written;
  std::set<uint32_t> by_share;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const Node& node = graph.nodes[index];
    const bool counts = dependent[index] || normalisations.contains(node.module);
    for (ValueId value : node.writes) {
      if (!is_state(graph, value)) continue;
      (counts ? by_share : written).insert(graph[value].storage.index);
    }
  }
  std::vector<ValueId> state;
  for (uint32_t storage : written) {
    if (!by_share.contains(storage)) state.push_back({storage});
  }
  return state;
}

}  // namespace rannc::ir
