#include <set>
#include <string_view>

#include "rannc/ir/passes.h"

namespace rannc::ir {

std::vector<ValueId> row_free_buffers(const Graph& graph) {
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
      if (graph[graph[value].storage].kind != ValueKind::buffer) continue;
      (counts ? by_share : written).insert(graph[value].storage.index);
    }
  }
  std::vector<ValueId> buffers;
  for (uint32_t storage : written) {
    if (!by_share.contains(storage)) buffers.push_back({storage});
  }
  return buffers;
}

}  // namespace rannc::ir
