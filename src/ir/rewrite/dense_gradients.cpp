#include <utility>

#include "ir/rows/row_call.h"
#include "rannc/ir/rewrites.h"

namespace rannc::ir {
namespace {

/// Where the operator says whether the gradient of its weight is sparse; 0: it cannot be.
size_t sparse_place(const Node& node) {
  if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::")) return 0;
  const std::string_view base = base_name(node.op);
  if (base == "embedding") return 4;
  return base == "embedding_bag" || base == "_embedding_bag" ? 5 : 0;
}

}  // namespace

DenseGradients dense_gradients(Graph graph) {
  DenseGradients result;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    Node& node = graph[NodeId{index}];
    const size_t place = sparse_place(node);
    if (place == 0 || node.inputs.size() <= place) continue;
    bool* sparse = std::get_if<bool>(&node.inputs[place]);
    if (sparse == nullptr || !*sparse) continue;
    *sparse = false;
    result.changed.push_back({index});
  }
  result.graph = std::move(graph);
  return result;
}

}  // namespace rannc::ir
