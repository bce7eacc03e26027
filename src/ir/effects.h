#pragma once

#include <vector>

#include "rannc/ir/graph.h"

// What the passes share about storages that outlive a forward pass.
namespace rannc::ir {

/// Whether `value` shares its storage with a parameter or buffer, so that a write to it is seen
/// after the forward pass.
[[nodiscard]] inline bool is_state(const Graph& graph, ValueId value) {
  const ValueKind kind = graph[graph[value].storage].kind;
  return kind == ValueKind::parameter || kind == ValueKind::buffer;
}

[[nodiscard]] inline bool writes_state(const Graph& graph, const Node& node) {
  for (ValueId written : node.writes) {
    if (is_state(graph, written)) return true;
  }
  return false;
}

/// For each node, whether one of `outputs`, or with `effects` a write to a parameter or buffer,
/// depends on it.
[[nodiscard]] std::vector<bool> live_nodes(const Graph& graph, const std::vector<ValueId>& outputs,
                                           bool effects);

}  // namespace rannc::ir
