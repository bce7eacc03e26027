#include <algorithm>

#include "ir/rows/literals.h"
#include "rannc/ir/draws.h"
#include "rannc/ir/operators.h"
#include "rannc/ir/rows.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

bool is_real(DType dtype) {
  return is_floating(dtype) && dtype != DType::complex64 && dtype != DType::complex128;
}

}  // namespace

bool is_float_cast(const Graph& graph, NodeId id) {
  const std::string_view base = base_name(graph[id].op);
  const std::vector<ValueId> operands = graph.operands(id);
  return (base == "to" || base == "_to_copy") && operands.size() == 1 &&
         graph[id].outputs.size() == 1 && is_real(graph[operands.front()].dtype) &&
         graph[id].outputs.front().valid() && is_real(graph[graph[id].outputs.front()].dtype);
}

namespace {

class Finder {
 public:
  Finder(const Graph& graph, const std::vector<bool>& known)
      : graph_(graph), same_(graph.values.size()), takes_gradient_(graph.values.size()) {
    std::vector<bool> excluded(graph.values.size());  // by storage
    for (const Node& node : graph.nodes) {
      for (ValueId written : node.writes) excluded[graph[written].storage.index] = true;
    }
    // Whoever gets a result may write it.
    for (ValueId output : graph.outputs) excluded[graph[output].storage.index] = true;
    for (uint32_t index = 0; index < graph.values.size(); ++index) {
      const Value& value = graph.values[index];
      same_[index] = value.rows.kind == RowKind::none &&
                     std::ranges::none_of(value.dims, &AffineInt::depends_on_rows) &&
                     !excluded[value.storage.index];
      takes_gradient_[index] = value.requires_grad || value.kind == ValueKind::parameter;
    }
    for (size_t index = 0; index < graph.inputs.size(); ++index) {
      if (!known[index]) same_[graph.inputs[index].index] = false;
    }
  }

  std::vector<bool> run() {
    std::vector<bool> found(graph_.nodes.size());
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      found[index] = is_per_call({index});
      for (ValueId output : graph_[NodeId{index}].outputs) {
        if (!output.valid()) continue;
        same_[output.index] = found[index];
        takes_gradient_[output.index] = reaches_gradient({index}, output);
      }
    }
    return found;
  }

 private:
  [[nodiscard]] bool reaches_gradient(NodeId id, ValueId output) const {
    return graph_[id].grad_enabled && is_floating(graph_[output].dtype) &&
           std::ranges::any_of(graph_.operands(id),
                               [&](ValueId operand) { return takes_gradient_[operand.index]; });
  }

  [[nodiscard]] bool is_per_call(NodeId id) const {
    const Node& node = graph_[id];
    const auto is_same = [&](ValueId value) { return !value.valid() || same_[value.index]; };
    if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::") || draws(node) ||
        has_row_dependent_literal(node) || !node.writes.empty() ||
        !std::ranges::all_of(graph_.operands(id), is_same) ||
        !std::ranges::all_of(node.outputs, is_same)) {
      return false;
    }
    return is_float_cast(graph_, id) || std::ranges::none_of(node.outputs, [&](ValueId output) {
             return output.valid() && reaches_gradient(id, output);
           });
  }

  const Graph& graph_;
  std::vector<bool> same_;  // [value]: for all micro-batches of a call
  std::vector<bool> takes_gradient_;
};

}  // namespace

std::vector<bool> per_call(const Graph& graph, const std::vector<bool>& known) {
  RANNC_CHECK(known.size() == graph.inputs.size(), "known inputs");
  return Finder(graph, known).run();
}

}  // namespace rannc::ir
