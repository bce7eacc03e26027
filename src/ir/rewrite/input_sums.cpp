#include "ir/rewrite/input_sums.h"

#include <algorithm>
#include <string_view>

#include "ir/effects.h"
#include "ir/rows/row_call.h"
#include "rannc/ir/draws.h"

namespace rannc::ir {
namespace {

bool is_known_and_certain(const Node& node) {
  // A Python node is what it is said to be like: a check, through which a tensor goes unchanged.
  const std::string& op = node.kind == OpKind::python ? node.like : node.op;
  if (node.kind == OpKind::scripted || !op.starts_with("aten::")) return false;
  return find_row_rule(base_name(op)) != nullptr && !may_draw(op) && !node.whole_batch;
}

bool is_cast(const Node& node) {
  const std::string_view base = base_name(node.op);
  return node.op.starts_with("aten::") && (base == "to" || base == "_to_copy" || base == "type_as");
}

}  // namespace

InputSums::InputSums(const Graph& graph)
    : graph_(graph),
      impure_(graph.values.size()),
      impure_views_(graph.values.size()),
      feeding_state_(graph.values.size()) {
  find_impure();
  find_feeding_state();
}

bool InputSums::spoil(ValueId value) {
  if (!value.valid() || impure_[graph_[value].storage.index]) return false;
  impure_[graph_[value].storage.index] = true;
  return true;
}

/// A view does not change what its storage holds: broadcast_tensors(y, x), as in mse_loss(y, x),
/// leaves the argument x to others, though its own view of x cannot be had without y.
bool InputSums::spoil_outputs(const Node& node) {
  bool changed = false;
  for (ValueId output : node.outputs) {
    if (!output.valid()) continue;
    const bool is_view = graph_[output].storage != output && is_known_and_certain(node);
    if (!is_view) {
      changed = spoil(output) || changed;
    } else if (!impure_views_[output.index]) {
      impure_views_[output.index] = changed = true;
    }
  }
  return changed;
}

bool InputSums::is_impure(ValueId value) const {
  return impure_[graph_[value].storage.index] || impure_views_[value.index];
}

bool InputSums::is_impure(NodeId id) const {
  const Node& node = graph_[id];
  const auto impure = [&](ValueId value) { return value.valid() && is_impure(value); };
  return !is_known_and_certain(node) || std::ranges::any_of(graph_.operands(id), impure) ||
         std::ranges::any_of(node.outputs, impure) || std::ranges::any_of(node.writes, impure);
}

void InputSums::find_impure() {
  for (uint32_t index = 0; index < graph_.values.size(); ++index) {
    if (graph_.values[index].kind == ValueKind::parameter) spoil({index});
  }
  // Arguments and state that are written would be written once more.
  for (const Node& node : graph_.nodes) {
    for (ValueId written : node.writes) {
      if (graph_[graph_[written].storage].kind != ValueKind::result) spoil(written);
    }
  }
  // By storage: what a node writes is seen through every view, so a sweep may spoil earlier nodes.
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      if (!is_impure(NodeId{index})) continue;
      changed = spoil_outputs(graph_[NodeId{index}]) || changed;
      for (ValueId written : graph_[NodeId{index}].writes) changed = spoil(written) || changed;
    }
  }
}

void InputSums::find_feeding_state() {
  for (uint32_t index = static_cast<uint32_t>(graph_.nodes.size()); index-- > 0;) {
    const Node& node = graph_[NodeId{index}];
    const auto feeds = [&](ValueId value) {
      return value.valid() && feeding_state_[graph_[value].storage.index];
    };
    if (!writes_state(graph_, node) && std::ranges::none_of(node.outputs, feeds) &&
        std::ranges::none_of(node.writes, feeds)) {
      continue;
    }
    for (ValueId operand : graph_.operands({index})) {
      feeding_state_[graph_[operand].storage.index] = true;
    }
  }
}

bool InputSums::fits(ValueId id) const {
  const Value& value = graph_[id];
  const bool is_complex = value.dtype == DType::complex64 || value.dtype == DType::complex128;
  return is_reduced(value.rows) && value.kind == ValueKind::result && !value.requires_grad &&
         !is_complex && !is_impure(id) && !feeding_state_[value.storage.index] &&
         graph_[value.producer].outputs.size() == 1;
}

ValueId InputSums::source(ValueId value) const {
  while (fits(value)) {
    if (graph_[value].storage != value) {
      value = graph_[value].storage;
      continue;
    }
    const Node& node = graph_[graph_[value].producer];
    const auto* operand = node.inputs.empty() ? nullptr : std::get_if<ValueId>(&node.inputs[0]);
    const bool is_exact_before = is_cast(node) && operand != nullptr && fits(*operand) &&
                                 !is_floating(graph_[*operand].dtype);
    if (!is_exact_before) return value;
    value = *operand;
  }
  return {};
}

}  // namespace rannc::ir
