#include "ir/rewrite/rewriter.h"

#include <algorithm>
#include <iterator>

#include "rannc/util/error.h"

namespace rannc::ir {

std::string unique_name(const std::string& name, std::unordered_set<std::string>& taken) {
  std::string result = name;
  for (int count = 2; !taken.insert(result).second; ++count) {
    result = name + "_" + std::to_string(count);
  }
  return result;
}

std::unordered_set<std::string> names_in(const Graph& graph) {
  std::unordered_set<std::string> names;
  for (const Value& value : graph.values) names.insert(value.name);
  for (const Node& node : graph.nodes) names.insert(node.name);
  return names;
}

Graph in_order(const Graph& graph) {
  std::vector<ValueId> order;
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    if (graph.values[index].kind != ValueKind::result) order.push_back({index});
  }
  for (const Node& node : graph.nodes) {
    std::ranges::copy_if(node.outputs, std::back_inserter(order), &ValueId::valid);
  }
  std::vector<ValueId> place(graph.values.size());
  for (uint32_t index = 0; index < order.size(); ++index) place[order[index].index] = {index};
  const auto move = [&](ValueId& id) {
    if (id.valid()) id = place[id.index];
  };

  Graph result = graph;
  for (size_t index = 0; index < order.size(); ++index) {
    result.values[index] = graph[order[index]];
    move(result.values[index].storage);
  }
  for (Node& node : result.nodes) {
    for (Argument& argument : node.inputs) {
      if (auto* value = std::get_if<ValueId>(&argument)) {
        move(*value);
      } else if (auto* list = std::get_if<ValueList>(&argument)) {
        std::ranges::for_each(list->values, move);
      }
    }
    std::ranges::for_each(node.outputs, move);
    std::ranges::for_each(node.writes, move);
  }
  std::ranges::for_each(result.inputs, move);
  std::ranges::for_each(result.outputs, move);
  return result;
}

AffineInt torch_number(DType dtype) {
  switch (dtype) {
    case DType::uint8:
      return {0, 0};
    case DType::int8:
      return {1, 0};
    case DType::int16:
      return {2, 0};
    case DType::int32:
      return {3, 0};
    case DType::int64:
      return {4, 0};
    case DType::float16:
      return {5, 0};
    case DType::float32:
      return {6, 0};
    case DType::float64:
      return {7, 0};
    case DType::complex64:
      return {9, 0};
    case DType::complex128:
      return {10, 0};
    case DType::boolean:
      return {11, 0};
    case DType::bfloat16:
      return {15, 0};
  }
  RANNC_CHECK(false, "a dtype without a number");
}

DType wide(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 ? DType::float32 : dtype;
}

Rewriter::Rewriter(const Graph& graph) : result_(graph), names_(names_in(graph)) {
  result_.nodes.clear();
}

void set_operator(Node& node, std::string op) {
  node.kind = OpKind::dispatcher;
  node.op = std::move(op);
  node.like.clear();
  node.object = {};
}

ValueId Rewriter::call(const Node& origin, std::string_view role, std::string op,
                       std::vector<Argument> inputs, NewResult result) {
  const std::string name = unique_name(origin.name + "." + std::string(role), names_);
  Value made;
  made.name = name;
  made.dtype = result.dtype;
  made.dims = std::move(result.dims);
  made.requires_grad = result.requires_grad;
  const auto on_host = [&](const Argument& input) {
    const auto* id = std::get_if<ValueId>(&input);
    return id != nullptr && result_[*id].on_host;
  };
  made.on_host = std::ranges::any_of(inputs, on_host);
  const ValueId value = result_.add_value(std::move(made));
  Node node = origin;
  node.name = name;
  set_operator(node, std::move(op));
  node.inputs = std::move(inputs);
  node.outputs = {value};
  node.writes.clear();
  result_.add_node(std::move(node));
  return value;
}

ValueId Rewriter::view(const Node& origin, std::string_view role, std::string op,
                       std::vector<Argument> inputs, NewResult result) {
  const ValueId storage = result_[std::get<ValueId>(inputs.at(0))].storage;
  const ValueId made = call(origin, role, std::move(op), std::move(inputs), std::move(result));
  result_[made].storage = storage;
  return made;
}

void Rewriter::call_into(ValueId result, const Node& origin, std::string op,
                         std::vector<Argument> inputs) {
  Node node = origin;
  set_operator(node, std::move(op));
  node.inputs = std::move(inputs);
  node.outputs = {result};
  node.writes.clear();
  result_.add_node(std::move(node));
}

ValueId Rewriter::cast(const Node& origin, std::string_view role, ValueId value, DType dtype) {
  if (result_[value].dtype == dtype) return value;
  const NewResult result{dtype, result_[value].dims, result_[value].requires_grad};
  return call(origin, role, "aten::to.dtype", {value, torch_number(dtype), false, false, None{}},
              result);
}

}  // namespace rannc::ir
