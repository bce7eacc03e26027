#include <utility>

#include "rannc/ir/operators.h"
#include "rannc/ir/rewrites.h"

namespace rannc::ir {
namespace {

/// Where the operator says whether the gradient of its weight is sparse; 0: it cannot be.
size_t sparse_place(const Node& node) {
  if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::")) return 0;
  const OperatorFamily family = find_operator(base_name(node.op)).family;
  if (family == OperatorFamily::embedding) return 4;
  return family == OperatorFamily::embedding_bag ? 5 : 0;
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
