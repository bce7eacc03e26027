#include "rannc/ir/contents.h"

#include <algorithm>

namespace rannc::ir {
namespace {

std::vector<NodeId> nodes_with(const Graph& graph, bool Node::*mark) {
  std::vector<NodeId> found;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (graph.nodes[index].*mark) found.push_back({index});
  }
  return found;
}

}  // namespace

std::set<DType> dtypes(const Graph& graph) {
  std::set<DType> found;
  for (const Value& value : graph.values) found.insert(value.dtype);
  return found;
}

bool requires_grad(const Graph& graph) {
  return std::ranges::any_of(graph.values, &Value::requires_grad);
}

std::vector<std::string> state_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Value& value : graph.values) {
    const bool is_state = value.kind == ValueKind::parameter || value.kind == ValueKind::buffer;
    if (is_state) names.push_back(value.name);
  }
  return names;
}

std::vector<ValueId> held_values(const Graph& graph) {
  std::vector<ValueId> held;
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    const ValueKind kind = graph.values[index].kind;
    if (kind != ValueKind::input && kind != ValueKind::result) held.push_back({index});
  }
  return held;
}

std::set<std::string> written_names(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes) {
    for (ValueId written : node.writes) names.insert(graph[graph[written].storage].name);
  }
  return names;
}

std::optional<NodeId> first_reader(const Graph& graph, const std::string& name) {
  const auto is_named = [&](ValueId operand) {
    const Value& value = graph[operand];
    return value.name == name || std::ranges::find(value.aliases, name) != value.aliases.end();
  };
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (std::ranges::any_of(graph.operands({index}), is_named)) return NodeId{index};
  }
  return std::nullopt;
}

std::map<std::string, NodeId> module_ends(const Graph& graph) {
  std::map<std::string, NodeId> ends;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const Node& node = graph.nodes[index];
    if (node.module.empty() || node.outputs.size() != 1 || !node.outputs[0].valid()) continue;
    // The module itself, and all modules above it.
    for (size_t end = node.module.size(); end != std::string::npos;) {
      ends[node.module.substr(0, end)] = {index};
      end = end == 0 ? std::string::npos : node.module.rfind('.', end - 1);
    }
  }
  return ends;
}

std::vector<NodeId> by_share_nodes(const Graph& graph) {
  return nodes_with(graph, &Node::by_share);
}

std::vector<NodeId> whole_batch_nodes(const Graph& graph) {
  return nodes_with(graph, &Node::whole_batch);
}

}  // namespace rannc::ir
