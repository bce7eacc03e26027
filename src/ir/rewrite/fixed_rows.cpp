#include <algorithm>
#include <cmath>

#include "ir/rewrite/rewriter.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

/// Names of nodes have no ':', as those of further results of a node do.
std::string own_rows_name(std::string value) {
  std::ranges::replace(value, ':', '_');
  return value + ".own_rows";
}

/// Beyond it a float of 64 bits is not every integer.
constexpr double kExactReals = 9007199254740992.0;

void fix(AffineInt& size, int64_t rows) { size = {size.at(rows), 0}; }

/// A float that is an integer counts as one: Python may have computed it from the rows.
void fix(Argument& argument, int64_t rows) {
  if (auto* number = std::get_if<AffineInt>(&argument)) {
    fix(*number, rows);
  } else if (auto* list = std::get_if<std::vector<AffineInt>>(&argument)) {
    for (AffineInt& each : *list) fix(each, rows);
  } else if (const auto* real = std::get_if<double>(&argument)) {
    if (std::trunc(*real) == *real && std::abs(*real) < kExactReals) {
      argument = AffineInt{static_cast<int64_t>(*real), 0};
    }
  }
}

/// One row lies in memory as its transpose does, so contiguous() and reshape() give a view of it
/// where they copy several. That makes no difference unless something is written there.
void forget_layout(Graph& graph) {
  for (const Node& node : graph.nodes) {
    for (ValueId written : node.writes) {
      const ValueKind kind = graph[graph[written].storage].kind;
      if (kind != ValueKind::parameter && kind != ValueKind::buffer) return;
    }
  }
  std::vector<ValueId> as(graph.values.size());
  for (uint32_t index = 0; index < as.size(); ++index) as[index] = {index};
  const auto move = [&](ValueId& id) {
    if (id.valid()) id = as[id.index];
  };
  std::vector<Node> nodes;
  for (Node node : graph.nodes) {
    for (Argument& argument : node.inputs) {
      if (auto* value = std::get_if<ValueId>(&argument)) {
        move(*value);
      } else if (auto* list = std::get_if<ValueList>(&argument)) {
        std::ranges::for_each(list->values, move);
      }
    }
    if (node.op == "aten::contiguous") {
      as[node.outputs.front().index] = std::get<ValueId>(node.inputs.front());
    } else {
      nodes.push_back(std::move(node));
    }
  }
  std::ranges::for_each(graph.outputs, move);
  graph.nodes.clear();
  for (Node& node : nodes) graph.add_node(std::move(node));
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    if (graph.values[index].kind == ValueKind::result) graph.values[index].storage = {index};
  }
}

/// `aten::slice` of `value` along `dim` up to `end`, as a new value at the end of the graph's.
Node slice(Graph& graph, ValueId value, int dim, AffineInt end, const std::string& name) {
  Value part = graph[value];
  part.name = name;
  part.kind = ValueKind::result;
  part.aliases.clear();
  part.object = {};
  part.rows = {};
  part.dims[static_cast<size_t>(dim)] = end;
  Node node;
  node.name = name;
  node.op = "aten::slice.Tensor";
  node.inputs = {value, AffineInt{dim, 0}, AffineInt{0, 0}, end, AffineInt{1, 0}};
  const ValueId storage = graph[value].storage;
  const ValueId made = graph.add_value(std::move(part));
  graph[made].storage = storage;
  node.outputs = {made};
  return node;
}

void replace(Node& node, ValueId old, ValueId now) {
  for (Argument& argument : node.inputs) {
    if (auto* value = std::get_if<ValueId>(&argument)) {
      if (*value == old) *value = now;
    } else if (auto* list = std::get_if<ValueList>(&argument)) {
      std::ranges::replace(list->values, old, now);
    }
  }
  std::ranges::replace(node.writes, old, now);
}

/// The same graph with `first` in front of all nodes.
Graph with_first(const Graph& graph, std::vector<Node> first) {
  Graph result = graph;
  result.nodes.clear();
  for (Node& node : first) result.add_node(std::move(node));
  for (const Node& node : graph.nodes) result.add_node(node);
  return result;
}

}  // namespace

Graph at_rows(const Graph& graph, int64_t rows) {
  Graph result = drop_dead_nodes(graph);
  for (Value& value : result.values) {
    for (AffineInt& size : value.dims) fix(size, rows);
    value.rows = {};
  }
  for (Node& node : result.nodes) {
    for (Argument& argument : node.inputs) fix(argument, rows);
  }
  if (rows == 1) forget_layout(result);
  return result;
}

Graph for_rows_alone(const Graph& trace, int64_t rows) {
  Graph graph = trace;
  auto names = names_in(graph);
  std::vector<Node> first;
  for (ValueId input : graph.inputs) {
    if (graph[input].rows.kind != RowKind::apart) continue;
    const int dim = graph[input].rows.dim;
    first.push_back(
        slice(graph, input, dim, {rows, 0}, unique_name(graph[input].name + ".all_rows", names)));
    graph[input].dims[static_cast<size_t>(dim)] = {0, 1};
    const ValueId whole = first.back().outputs.front();
    for (Node& node : graph.nodes) replace(node, input, whole);
    std::ranges::replace(graph.outputs, input, whole);
  }
  graph = infer_rows(with_first(graph, std::move(first)));
  for (ValueId& output : graph.outputs) {
    const Value& value = graph[output];
    if (value.rows.kind == RowKind::none || value.dims.empty()) continue;
    if (value.dims.front() != AffineInt{rows, 0}) continue;
    const ValueId old = output;
    Node node = slice(graph, old, 0, {0, 1}, unique_name(own_rows_name(graph[old].name), names));
    std::ranges::replace(graph.outputs, old, node.outputs.front());
    graph.add_node(std::move(node));
  }
  graph = infer_rows(drop_dead_nodes(in_order(graph)));
  verify(graph);
  return graph;
}

}  // namespace rannc::ir
