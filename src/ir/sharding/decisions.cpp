#include "ir/sharding/decisions.h"

#include <algorithm>
#include <string_view>

namespace rannc::ir::sharding {

Decisions::Decisions(const Graph& graph, const Analysis& analysis, std::set<ContentId> cut,
                     std::set<ValueId> held_otherwise, std::set<ContentId> sequences)
    : graph_(graph),
      analysis_(analysis),
      cut_(std::move(cut)),
      held_otherwise_(std::move(held_otherwise)),
      sequences_(std::move(sequences)) {
  for (const Node& node : graph.nodes) {
    for (const ValueId value : node.writes) written_.insert(storage(value));
  }
  do {
    decide();
  } while (find_unlike() || find_apart() || find_idle());
}

void Decisions::decide() {
  nodes_.assign(graph_.nodes.size(), std::nullopt);
  values_.assign(graph_.values.size(), std::nullopt);
  for (uint32_t index = 0; index < graph_.values.size(); ++index) {
    const ValueId id{index};
    const ValueKind kind = graph_[id].kind;
    if ((kind != ValueKind::parameter && kind != ValueKind::buffer) ||
        whole_.contains(storage(id)) || held_otherwise_.contains(id)) {
      continue;
    }
    for (const Analysis::Found& each : analysis_.in(id)) {
      // One that it has twice, as a product between residuals, stays whole.
      if (cut_.contains(each.factor) && analysis_.dim(id, each.factor))
        values_[index] = each.factor;
    }
  }
  for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
    nodes_[index] = choice(NodeId{index});
    if (!nodes_[index]) continue;
    for (const ValueId output : graph_.nodes[index].outputs) {
      if (output.valid() && analysis_.has(output, *nodes_[index])) {
        values_[output.index] = nodes_[index];
      }
    }
    keep_sum_cut(NodeId{index});
  }
}

bool Decisions::gives_sum(NodeId node) const {
  const std::optional<ContentId> factor = of(node);
  if (!factor || sequences_.contains(*factor)) return false;
  const bool looks_up = analysis_.has_role(node, *factor, Role::exchange) &&
                        base_name(known_op(graph_[node])) == "embedding";
  return looks_up || analysis_.has_role(node, *factor, Role::reduced);
}

void Decisions::keep_sum_cut(NodeId node) {
  if (!gives_sum(node)) return;
  const ValueId sum = graph_[node].outputs.front();
  if (whole_.contains(storage(sum)) || never_cut_.contains(sum) || whole_sums_.contains(sum))
    return;
  for (const Analysis::Found& each : analysis_.in(sum)) {
    const bool cut = sequences_.contains(each.factor) && analysis_.dim(sum, each.factor) &&
                     analysis_.stretches(sum, each.factor) && has_fixed_parts(sum, each.factor);
    if (cut) values_[sum.index] = each.factor;
  }
}

/// The factor of an operand that is cut already: of a parameter before that of a value, and that
/// before a sequence.
std::optional<ContentId> Decisions::choice(NodeId node) const {
  std::optional<ContentId> found;
  std::optional<ContentId> sequence;
  for (const ValueId operand : graph_.operands(node)) {
    const std::optional<ContentId> factor = values_[operand.index];
    if (!factor || !fits(node, *factor)) continue;
    if (sequences_.contains(*factor)) {
      if (!sequence && goes_on(node, *factor)) sequence = factor;
      continue;
    }
    if (graph_[operand].kind == ValueKind::parameter) return factor;
    if (!found) found = factor;
  }
  return found ? found : sequence;
}

bool Decisions::goes_on(NodeId node, ContentId sequence) const {
  static const std::set<std::string_view> kProducts{
      "linear", "matmul",  "mm",     "bmm",       "mv",
      "addmm",  "baddbmm", "einsum", "embedding", "scaled_dot_product_attention"};
  const std::string_view base = base_name(known_op(graph_[node]));
  if (kProducts.contains(base) || base.find("conv") != std::string_view::npos) return false;
  return std::ranges::all_of(graph_[node].outputs, [&](ValueId output) {
    return !output.valid() ||
           (analysis_.has(output, sequence) && has_fixed_parts(output, sequence));
  });
}

bool Decisions::has_fixed_parts(ValueId value, ContentId sequence) const {
  const std::optional<int> dim = analysis_.dim(value, sequence);
  return dim && !graph_[value].dims[static_cast<size_t>(*dim)].depends_on_rows();
}

bool Decisions::fits(NodeId node, ContentId factor) const {
  if (!analysis_.can_run(node, factor)) return false;
  const auto allows = [&](ValueId value) {
    if (!value.valid() || !analysis_.has(value, factor)) return true;
    return analysis_.dim(value, factor).has_value() && !whole_.contains(storage(value)) &&
           !never_cut_.contains(value);
  };
  const std::vector<ValueId> operands = graph_.operands(node);
  // Indices are counted from the begin of one stretch.
  if (analysis_.has_role(node, factor, Role::exchange)) {
    const ValueId scores = operands.front();
    if (!analysis_.dim(scores, factor) || analysis_.stretches(scores, factor) != 1) return false;
  }
  return std::ranges::all_of(operands, allows) && std::ranges::all_of(graph_[node].outputs, allows);
}

bool Decisions::find_unlike() {
  bool found = false;
  std::vector<std::optional<std::optional<ContentId>>> seen(graph_.values.size());
  const auto look = [&](ValueId value, std::optional<ContentId> form) {
    const ValueId memory = storage(value);
    if (!written_.contains(memory) || whole_.contains(memory)) return;
    auto& first = seen[memory.index];
    if (!first) first = form;
    if (*first == form) return;
    whole_.insert(memory);
    found = true;
  };
  for (uint32_t index = 0; index < graph_.values.size(); ++index) {
    look(ValueId{index}, values_[index]);
  }
  // A node that needs it otherwise than it is would write, or keep, a copy.
  for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
    for (const ValueId operand : graph_.operands(NodeId{index})) {
      const std::optional<ContentId> factor = nodes_[index];
      const bool parts = factor && analysis_.has(operand, *factor);
      if (values_[operand.index] || parts) look(operand, parts ? factor : std::nullopt);
    }
  }
  return found;
}

bool Decisions::find_idle() {
  std::set<ValueId> used;
  for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
    for (const ValueId operand : graph_.operands(NodeId{index})) {
      if (nodes_[index] && nodes_[index] == values_[operand.index]) used.insert(operand);
    }
  }
  bool found = false;
  for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
    if (!gives_sum(NodeId{index})) continue;
    const ValueId sum = graph_.nodes[index].outputs.front();
    if (values_[sum.index] && !used.contains(sum)) found = whole_sums_.insert(sum).second || found;
  }
  return found;
}

bool Decisions::find_apart() {
  bool found = false;
  const auto need = [&](ValueId value, std::optional<ContentId> as) {
    const std::optional<ContentId> factor = values_[value.index];
    if (factor == as) return;
    const bool gathers = factor && !analysis_.stretches(value, *factor);
    const bool slices = as && analysis_.has(value, *as) && !analysis_.stretches(value, *as);
    if (gathers || slices) found = never_cut_.insert(value).second || found;
  };
  for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
    for (const ValueId operand : graph_.operands(NodeId{index})) need(operand, nodes_[index]);
  }
  for (const ValueId output : graph_.outputs) need(output, std::nullopt);
  return found;
}

}  // namespace rannc::ir::sharding
