#include "ir/passes/effects.h"
#include "ir/passes/row_call.h"
#include "rannc/ir/passes.h"

namespace rannc::ir {

std::vector<NodeId> batch_normalisations(const Graph& graph) {
  const ArgumentsOnly no_rows;
  const RowRule batch_norm = find_row_rule("batch_norm");
  std::vector<NodeId> found;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const Node& node = graph[NodeId{index}];
    if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::")) continue;
    const RowCall call(graph, {index}, no_rows);
    if (find_row_rule(call.base()) != batch_norm) continue;
    const bool has_statistics = call.overload() != "no_stats";
    if (call.boolean(has_statistics ? 5 : 3, false)) found.push_back({index});
  }
  return found;
}

}  // namespace rannc::ir
