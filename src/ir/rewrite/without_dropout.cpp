#include "rannc/ir/draws.h"
#include "rannc/ir/rewrites.h"

namespace rannc::ir {

Graph without_dropout(Graph graph) {
  for (Node& node : graph.nodes) {
    const std::optional<size_t> place = drop_probability(node);
    if (place && *place < node.inputs.size()) node.inputs[*place] = 0.0;
  }
  return graph;
}

}  // namespace rannc::ir
