#include "ir/cut/subgraph.h"
#include "ir/effects.h"
#include "rannc/ir/cut.h"

namespace rannc::ir {

std::vector<bool> live_nodes(const Graph& graph, const std::vector<ValueId>& outputs,
                             bool effects) {
  std::vector<bool> live(graph.nodes.size());
  // Writes by storage, not by value: a read of any view sees the writes before it.
  std::vector<bool> needed(graph.values.size());
  std::vector<bool> read(graph.values.size());
  const auto need = [&](ValueId id) {
    needed[graph[id].storage.index] = true;
    read[id.index] = true;
  };
  for (ValueId output : outputs) need(output);

  // Nodes are in topological order, so one backward sweep meets every reader before its writers.
  for (uint32_t index = static_cast<uint32_t>(graph.nodes.size()); index-- > 0;) {
    const Node& node = graph[NodeId{index}];
    bool is_live = effects && writes_state(graph, node);
    for (ValueId output : node.outputs) {
      is_live = is_live || (output.valid() && read[output.index]);
    }
    for (ValueId written : node.writes) is_live = is_live || needed[graph[written].storage.index];
    if (!is_live) continue;
    live[index] = true;
    for (ValueId operand : graph.operands({index})) need(operand);
    for (ValueId written : node.writes) need(written);
  }
  return live;
}

std::vector<bool> leading_to(const Graph& graph, const std::vector<ValueId>& outputs) {
  const std::vector<bool> live = live_nodes(graph, outputs, /*effects=*/false);
  std::vector<bool> storages(graph.values.size());
  for (ValueId output : outputs) storages[graph[output].storage.index] = true;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!live[index]) continue;
    for (ValueId operand : graph.operands({index})) storages[graph[operand].storage.index] = true;
  }
  std::vector<bool> found;
  found.reserve(graph.values.size());
  for (const Value& value : graph.values) found.push_back(storages[value.storage.index]);
  return found;
}

Graph drop_dead_nodes(const Graph& graph) {
  std::vector<ValueId> keep;
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    const ValueKind kind = graph.values[index].kind;
    if (kind != ValueKind::result && kind != ValueKind::constant) keep.push_back({index});
  }
  Graph result =
      subgraph(graph, live_nodes(graph, graph.outputs, /*effects=*/true), keep, graph.outputs);
  // Inputs keep the order of the call's arguments, which need not be that of their ids.
  std::vector<ValueId> inputs;
  for (ValueId input : graph.inputs) inputs.push_back(*result.find_value(graph[input].name));
  result.inputs = std::move(inputs);
  return result;
}

}  // namespace rannc::ir
