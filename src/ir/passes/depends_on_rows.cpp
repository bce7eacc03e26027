#include <algorithm>

#include "ir/passes/effects.h"
#include "rannc/ir/passes.h"

namespace rannc::ir {
namespace {

bool depends(const Value& value) {
  return value.rows.kind != RowKind::none ||
         std::ranges::any_of(value.dims, &AffineInt::depends_on_rows);
}

}  // namespace

std::vector<bool> depends_on_rows(const Graph& graph) {
  std::vector<bool> nodes(graph.nodes.size());
  // By storage: what a node writes is seen through every view, and in state even by nodes that
  // read it before the write, in the next forward pass.
  std::vector<bool> storages(graph.values.size());
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::result && depends(value)) storages[value.storage.index] = true;
  }
  const auto is_row_dependent = [&](ValueId id) {
    return id.valid() && storages[graph[id].storage.index];
  };
  const auto makes_rows = [&](ValueId output) { return output.valid() && depends(graph[output]); };

  // A round that finds state which a row-dependent node writes is followed by another one, for the
  // nodes that read that state earlier in the pass.
  for (bool changed = true; changed;) {
    changed = false;
    const auto mark = [&](ValueId id) {
      if (!id.valid() || is_row_dependent(id)) return;
      storages[graph[id].storage.index] = true;
      changed = changed || is_state(graph, id);
    };
    for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
      const Node& node = graph[NodeId{index}];
      nodes[index] = nodes[index] || std::ranges::any_of(node.outputs, makes_rows) ||
                     std::ranges::any_of(node.writes, is_row_dependent) ||
                     std::ranges::any_of(graph.operands({index}), is_row_dependent);
      if (!nodes[index]) continue;
      std::ranges::for_each(node.outputs, mark);
      std::ranges::for_each(node.writes, mark);
    }
  }
  return nodes;
}

}  // namespace rannc::ir
