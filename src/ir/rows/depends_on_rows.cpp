#include <algorithm>

#include "ir/effects.h"
#include "ir/rows/literals.h"
#include "ir/rows/row_call.h"
#include "rannc/ir/draws.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

bool depends(const Value& value) {
  return value.rows.kind != RowKind::none ||
         std::ranges::any_of(value.dims, &AffineInt::depends_on_rows);
}

/// Rules ask for rows; here the operator alone matters.
OperatorFamily family_of(const Node& node) {
  const std::string& op = known_op(node);
  const bool is_known = node.kind == OpKind::dispatcher || !node.like.empty();
  return is_known && op.starts_with("aten::") ? find_operator(base_name(op)).family
                                              : OperatorFamily::none;
}

class Marker {
 public:
  explicit Marker(const Graph& graph)
      : graph_(graph), nodes_(graph.nodes.size()), storages_(graph.values.size()) {
    for (const Value& value : graph.values) {
      if (value.kind != ValueKind::result && depends(value)) storages_[value.storage.index] = true;
    }
    made_alike_.resize(graph.nodes.size());
    for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
      made_alike_[index] = is_made_alike({index});
    }
  }

  std::vector<bool> run() {
    // A sweep that finds a storage to depend on the rows is followed by another one, for the nodes
    // that touched that storage earlier in the pass.
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
        if (nodes_[index] || !is_dependent({index})) continue;
        nodes_[index] = true;
        for (ValueId output : graph_[NodeId{index}].outputs) changed = mark(output) || changed;
        for (ValueId written : graph_[NodeId{index}].writes) changed = mark(written) || changed;
      }
    }
    return std::move(nodes_);
  }

 private:
  /// Whether every stage can make the results for the rows of its own share, without taking any:
  /// torch.arange(B), torch.zeros(B, 4), and views of them.
  [[nodiscard]] bool is_made_alike(NodeId id) const {
    const Node& node = graph_[id];
    const OperatorFamily family = family_of(node);
    if (!node.writes.empty()) return false;
    const std::vector<ValueId> operands = graph_.operands(id);
    if (operands.empty()) {
      const bool makes = family == OperatorFamily::create || family == OperatorFamily::full ||
                         family == OperatorFamily::counting;
      return makes && !may_draw(node.op);
    }
    const NodeId source = graph_[operands.front()].producer;
    return operands.size() == 1 && source.valid() && made_alike_[source.index] &&
           (keeps_order_of_rows(family) || family == OperatorFamily::select);
  }

  [[nodiscard]] bool is_marked(ValueId id) const {
    return id.valid() && storages_[graph_[id].storage.index];
  }
  [[nodiscard]] bool is_dependent(NodeId id) const {
    const Node& node = graph_[id];
    const auto marked = [&](ValueId value) { return is_marked(value); };
    if (std::ranges::any_of(node.outputs, marked) || std::ranges::any_of(node.writes, marked) ||
        std::ranges::any_of(graph_.operands(id), marked)) {
      return true;
    }
    if (made_alike_[id.index]) return false;
    return has_row_dependent_literal(node) ||
           std::ranges::any_of(node.outputs, [&](ValueId output) {
             return output.valid() && depends(graph_[output]);
           });
  }
  /// Whether that is news. By storage: what a node writes is seen through every view, and in state
  /// even by nodes that read it before the write, in the next forward pass.
  bool mark(ValueId id) {
    if (!id.valid() || is_marked(id)) return false;
    storages_[graph_[id].storage.index] = true;
    return true;
  }

  const Graph& graph_;
  std::vector<bool> nodes_;
  std::vector<bool> storages_;
  std::vector<bool> made_alike_;  // by node
};

}  // namespace

std::vector<bool> depends_on_rows(const Graph& graph) { return Marker(graph).run(); }

}  // namespace rannc::ir
