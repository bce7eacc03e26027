#include <algorithm>
#include <optional>

#include "ir/cut/subgraph.h"
#include "ir/effects.h"
#include "ir/rewrite/input_sums.h"
#include "ir/rewrite/rewriter.h"
#include "ir/rows/literals.h"
#include "ir/rows/row_call.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

bool is_reduced_value(const Value& value) { return is_reduced(value.rows); }

/// Replaces what broadcast_tensors() gives back as it was: for tensors of one shape torch returns
/// the tensors themselves, so that all later uses of an argument x seemed to follow from
/// mse_loss(y, x), and from y with it.
Graph without_idle_broadcasts(Graph graph) {
  std::vector<ValueId> same(graph.values.size());
  const auto replace = [&](ValueId& id) {
    if (id.valid() && same[id.index].valid()) id = same[id.index];
  };
  for (Node& node : graph.nodes) {
    for (Argument& argument : node.inputs) {
      if (auto* value = std::get_if<ValueId>(&argument)) {
        replace(*value);
      } else if (auto* list = std::get_if<ValueList>(&argument)) {
        for (ValueId& element : list->values) replace(element);
      }
    }
    for (ValueId& written : node.writes) replace(written);
    if (node.op != "aten::broadcast_tensors") continue;
    const std::vector<ValueId>& given = std::get<ValueList>(node.inputs[0]).values;
    for (size_t index = 0; index < given.size(); ++index) {
      const Value& before = graph[given[index]];
      const Value& after = graph[node.outputs[index]];
      if (before.dims != after.dims || before.storage != after.storage) continue;
      same[node.outputs[index].index] = given[index];
    }
  }
  for (ValueId& output : graph.outputs) replace(output);
  return graph;
}

/// A sum that was hoisted: `local` is computed from rows at hand, `global` is a new input.
struct Hoisted {
  ValueId local;
  ValueId global;
  int round = 0;
};

class Hoister {
 public:
  explicit Hoister(const Graph& graph)
      : graph_(infer_rows(without_idle_broadcasts(graph))),
        inputs_(graph.inputs.size()),
        outputs_(graph.outputs.size()) {}

  HoistedSums run(bool by_share) {
    while (step()) {
    }
    take_back_useless();
    if (by_share) average_shares();
    return split();
  }

 private:
  /// Hoists, or turns into sums, what makes rows interact; false when nothing is left to do.
  bool step() {
    const InputSums sums(graph_);
    std::vector<ValueId> found;
    for (const RowMix& mix : row_mixes(graph_)) {
      for (ValueId operand : graph_.operands(mix.node)) {
        const ValueId sum = sums.source(operand);
        if (sum.valid() && std::ranges::find(found, sum) == found.end()) found.push_back(sum);
      }
    }
    for (ValueId sum : found) hoist(sum);
    if (found.empty() && !add_like_terms()) return false;
    graph_ = infer_rows(graph_);
    return true;
  }

  /// `sum` keeps its users and becomes an input; its node gives a new value, an output.
  void hoist(ValueId sum) {
    const NodeId node = graph_[sum].producer;
    const bool is_written = is_written_by_any(graph_[sum].storage);
    std::unordered_set<std::string> names = names_in(graph_);
    Value copy = graph_[sum];
    copy.name = unique_name(copy.name + ".local", names);
    copy.storage = {};
    const ValueId local = graph_.add_value(std::move(copy));
    std::ranges::replace(graph_[node].outputs, sum, local);
    graph_[local].producer = node;
    ValueId global = sum;
    if (is_written) global = add_clone(sum, node, names);
    graph_[global].kind = ValueKind::input;
    graph_[global].rows = {};
    graph_[global].producer = {};
    graph_.inputs.push_back(global);
    graph_.outputs.push_back(local);
    hoisted_.push_back({local, global});
  }

  /// A new value that `value` is a copy of, made where `origin` was: for sums that are written in
  /// place, because an input must stay what it is.
  ValueId add_clone(ValueId value, NodeId origin, std::unordered_set<std::string>& names) {
    Value copy = graph_[value];
    copy.name = unique_name(copy.name + ".global", names);
    copy.storage = {};
    const ValueId source = graph_.add_value(std::move(copy));
    Node node = graph_[origin];
    node.name = unique_name(node.name + ".clone", names);
    set_operator(node, "aten::clone");
    node.inputs = {source, None{}};
    node.outputs = {value};
    node.writes.clear();
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (uint32_t index = 0; index < nodes.size(); ++index) {
      graph_.add_node(std::move(nodes[index]));
      if (index == origin.index) graph_.add_node(node);
    }
    return source;
  }

  [[nodiscard]] bool is_written_by_any(ValueId storage) const {
    return std::ranges::any_of(graph_.nodes, [&](const Node& node) {
      return std::ranges::any_of(
          node.writes, [&](ValueId written) { return graph_[written].storage == storage; });
    });
  }

  // --- sums next to means and constants ---

  /// Where a mean or a constant is added to a sum, replaces it by itself times the rows at hand
  /// over all rows, which is a sum.
  bool add_like_terms() {
    const std::vector<RowMix> mixes = row_mixes(graph_);
    const auto is_unlike = [&](const RowMix& mix) {
      return !unlike_terms(graph_[mix.node]).empty();
    };
    const auto found = std::ranges::find_if(mixes, is_unlike);
    if (found == mixes.end()) return false;
    if (!rows_.valid()) {
      count_rows(graph_[found->node]);
      return true;  // ids of nodes are others now
    }
    Rewriter out(graph_);
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      Node node = graph_.nodes[index];
      if (std::ranges::find(mixes, NodeId{index}, &RowMix::node) != mixes.end()) {
        for (const Term& term : unlike_terms(graph_.nodes[index])) {
          replace_by_share(out, node, graph_.nodes[index], term);
        }
      }
      out.keep(std::move(node));
    }
    graph_ = out.take();
    return true;
  }

  /// One term of an addition: an argument, or an element of one that is a list.
  struct Term {
    size_t argument = 0;
    std::optional<size_t> element;
  };

  /// The terms that are means or constants where another is a sum; none when that cannot be helped.
  [[nodiscard]] std::vector<Term> unlike_terms(const Node& node) const {
    if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::")) return {};
    bool has_sum = false;
    std::vector<Term> unlike;
    for (const Term& term : terms_of(node)) {
      const Argument& argument = node.inputs[term.argument];
      const auto* list = std::get_if<ValueList>(&argument);
      const auto* value =
          list != nullptr ? &list->values[*term.element] : std::get_if<ValueId>(&argument);
      if (value == nullptr) {
        const auto* whole = std::get_if<AffineInt>(&argument);
        const bool is_number = std::holds_alternative<double>(argument) ||
                               (whole != nullptr && !whole->depends_on_rows());
        if (!is_number) return {};
        unlike.push_back(term);
        continue;
      }
      const RowKind kind = value->valid() ? graph_[*value].rows.kind : RowKind::mixed;
      if (kind == RowKind::sum) {
        has_sum = true;
      } else if (kind == RowKind::mean || kind == RowKind::none) {
        if (term.argument == 0 && !node.writes.empty()) return {};  // it is written
        unlike.push_back(term);
      } else {
        return {};
      }
    }
    return has_sum ? unlike : std::vector<Term>{};
  }

  [[nodiscard]] static std::vector<Term> terms_of(const Node& node) {
    using F = OperatorFamily;
    const F family = find_operator(base_name(node.op)).family;
    if (family == F::add) return {{0, {}}, {1, {}}};
    if (family == F::where && node.inputs.size() == 3) return {{1, {}}, {2, {}}};
    std::vector<Term> terms;
    const bool is_joined = family == F::stack || family == F::cat;
    const auto* list = is_joined ? std::get_if<ValueList>(&node.inputs[0]) : nullptr;
    for (size_t index = 0; list != nullptr && index < list->values.size(); ++index) {
      terms.push_back({0, index});
    }
    return terms;
  }

  void replace_by_share(Rewriter& out, Node& node, const Node& origin, const Term& term) const {
    Argument& argument = node.inputs[term.argument];
    if (term.element) {
      ValueId& element = std::get<ValueList>(argument).values[*term.element];
      element = as_sum(out, origin, element);
      return;
    }
    if (!std::holds_alternative<ValueId>(argument)) {
      const DType dtype = graph_[origin.outputs.front()].dtype;
      argument = out.call(origin, "term", "aten::scalar_tensor",
                          {argument, torch_number(dtype), None{}, None{}, None{}}, {dtype, {}});
      node.op = node.op.substr(0, node.op.find('.'));
      node.op += base_name(node.op) == "where" ? ".self" : ".Tensor";
    }
    argument = as_sum(out, origin, std::get<ValueId>(argument));
  }

  /// Puts a node that counts the rows first, and hoists it.
  void count_rows(const Node& origin) {
    Node first = origin;
    std::unordered_set<std::string> names = names_in(graph_);
    first.name = unique_name("rows", names);
    set_operator(first, "aten::scalar_tensor");
    first.inputs = {AffineInt{0, 1}, torch_number(DType::int64), None{}, None{}, None{}};
    first.writes.clear();
    Value rows;
    rows.name = first.name;
    rows.dtype = DType::int64;
    rows.rows.kind = RowKind::sum;
    rows_ = graph_.add_value(std::move(rows));
    first.outputs = {rows_};
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    graph_.add_node(std::move(first));
    for (Node& node : nodes) graph_.add_node(std::move(node));
    hoist(rows_);
  }

  [[nodiscard]] ValueId as_sum(Rewriter& out, const Node& origin, ValueId term) const {
    const Value value = out[term];
    const DType dtype =
        is_floating(value.dtype) ? value.dtype : graph_[origin.outputs.front()].dtype;
    const ValueId exact = out.cast(origin, "term", term, wide(dtype));
    const NewResult result{wide(dtype), value.dims, value.requires_grad};
    const ValueId rows = out.cast(origin, "rows", rows_, result.dtype);
    const ValueId times =
        out.call(origin, "times", "aten::mul.Scalar", {exact, AffineInt{0, 1}}, result);
    const ValueId share = out.call(origin, "share", "aten::div.Tensor", {times, rows}, result);
    return out.cast(origin, "part", share, dtype);
  }

  // --- what is not linear ---

  /// Marks the nodes that are not linear in sums and means over the batch, where no other rows
  /// interact; else changes nothing.
  void average_shares() {
    const Hoister before = *this;
    for (;;) {
      const std::vector<RowMix> mixes = row_mixes(graph_);
      if (mixes.empty()) return;
      if (add_like_terms()) {  // what was marked before counts as a mean
        graph_ = infer_rows(graph_);
        continue;
      }
      const auto is_right = [&](const RowMix& mix) { return is_of_reductions(graph_[mix.node]); };
      if (!std::ranges::all_of(mixes, is_right)) {
        *this = before;
        return;
      }
      const auto takes_sum = [&](const RowMix& mix) {
        return std::ranges::any_of(graph_.operands(mix.node), [&](ValueId operand) {
          return graph_[operand].rows.kind == RowKind::sum;
        });
      };
      if (!rows_.valid() && std::ranges::any_of(mixes, takes_sum)) {
        count_rows(graph_[mixes.front().node]);
        graph_ = infer_rows(graph_);
        continue;
      }
      Rewriter out(graph_);
      for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
        Node node = graph_.nodes[index];
        if (std::ranges::find(mixes, NodeId{index}, &RowMix::node) != mixes.end()) {
          take_estimates(out, node, graph_.nodes[index]);
          node.by_share = true;
        }
        out.keep(std::move(node));
      }
      graph_ = infer_rows(out.take());
    }
  }

  [[nodiscard]] bool is_of_reductions(const Node& node) const {
    const auto is_row_free = [&](ValueId id) {
      return !id.valid() || std::ranges::none_of(graph_[id].dims, &AffineInt::depends_on_rows);
    };
    if (node.by_share || !node.writes.empty() || has_row_dependent_literal(node) ||
        !std::ranges::all_of(node.outputs, is_row_free)) {
      return false;
    }
    const NodeId id = graph_[node.outputs.front()].producer;
    return std::ranges::all_of(graph_.operands(id), [&](ValueId operand) {
      const Value& value = graph_[operand];
      if (value.rows.kind == RowKind::sum) return is_floating(value.dtype);
      return value.rows.kind == RowKind::mean || value.rows.kind == RowKind::none;
    });
  }

  /// Replaces the sums that a node takes by what the share at hand lets one expect of the whole
  /// batch: a mean.
  void take_estimates(Rewriter& out, Node& node, const Node& origin) const {
    const auto estimate = [&](ValueId& id) {
      if (!id.valid() || graph_[id].rows.kind != RowKind::sum) return;
      const bool grad = graph_[id].requires_grad;
      const std::vector<AffineInt> dims = graph_[id].dims;
      const ValueId exact = out.cast(origin, "total", id, wide(graph_[id].dtype));
      const DType work = out[exact].dtype;
      const ValueId rows = out.cast(origin, "rows", rows_, work);
      const ValueId times =
          out.call(origin, "times", "aten::mul.Tensor", {exact, rows}, {work, dims, grad});
      const ValueId mean = out.call(origin, "estimate", "aten::div.Scalar",
                                    {times, AffineInt{0, 1}}, {work, dims, grad});
      id = out.cast(origin, "estimate", mean, graph_[id].dtype);
    };
    for (Argument& argument : node.inputs) {
      if (auto* value = std::get_if<ValueId>(&argument)) {
        estimate(*value);
      } else if (auto* list = std::get_if<ValueList>(&argument)) {
        for (ValueId& element : list->values) estimate(element);
      }
    }
  }

  // --- the result ---

  /// A sum that turned out to be computed from other hoisted ones alone is computed in the main
  /// graph again.
  void take_back_useless() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t index = 0; index < hoisted_.size(); ++index) {
        const Hoisted item = hoisted_[index];
        if (is_reduced_value(graph_[item.local])) continue;
        const NodeId node = graph_[item.local].producer;
        std::ranges::replace(graph_[node].outputs, item.local, item.global);
        graph_[item.global].kind = ValueKind::result;
        graph_[item.global].producer = node;
        std::erase(graph_.inputs, item.global);
        std::erase(graph_.outputs, item.local);
        hoisted_.erase(hoisted_.begin() + static_cast<int64_t>(index));
        // `local` stays behind without node or user; subgraph() leaves it out.
        graph_[item.local].kind = ValueKind::constant;
        graph_ = infer_rows(graph_);
        changed = true;
        break;
      }
    }
  }

  HoistedSums split() {
    find_rounds();
    HoistedSums result;
    const std::vector<ValueId> outputs(graph_.outputs.begin(),
                                       graph_.outputs.begin() + static_cast<int64_t>(outputs_));
    std::vector<ValueId> inputs(graph_.inputs.begin(),
                                graph_.inputs.begin() + static_cast<int64_t>(inputs_));
    for (size_t begin = 0; begin < hoisted_.size();) {
      size_t end = begin;
      std::vector<ValueId> sums;
      for (; end < hoisted_.size() && hoisted_[end].round == hoisted_[begin].round; ++end) {
        sums.push_back(hoisted_[end].local);
      }
      result.preludes.push_back(part(inputs, sums, /*is_main=*/false));
      for (; begin < end; ++begin) inputs.push_back(hoisted_[begin].global);
    }
    result.main = part(inputs, outputs, /*is_main=*/true);
    return result;
  }

  /// A sum belongs to the round after those that it is computed from.
  void find_rounds() {
    std::vector<std::vector<bool>> read;  // by sum: the values that its nodes read
    for (const Hoisted& sum : hoisted_) {
      read.emplace_back(graph_.values.size());
      const std::vector<bool> live = live_nodes(graph_, {sum.local}, /*effects=*/false);
      for (uint32_t node = 0; node < live.size(); ++node) {
        if (!live[node]) continue;
        for (ValueId operand : graph_.operands({node})) read.back()[operand.index] = true;
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t index = 0; index < hoisted_.size(); ++index) {
        int& round = hoisted_[index].round;
        for (const Hoisted& other : hoisted_) {
          if (!read[index][other.global.index] || round > other.round) continue;
          round = other.round + 1;
          changed = true;
        }
      }
    }
    std::ranges::stable_sort(hoisted_, {}, &Hoisted::round);
  }

  [[nodiscard]] Graph part(const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
                           bool is_main) const {
    std::vector<ValueId> keep = inputs;
    for (uint32_t index = 0; is_main && index < graph_.values.size(); ++index) {
      const ValueKind kind = graph_.values[index].kind;
      if (kind == ValueKind::parameter || kind == ValueKind::buffer) keep.push_back({index});
    }
    Graph result = subgraph(graph_, live_nodes(graph_, outputs, is_main), keep, outputs);
    result.inputs.clear();
    for (ValueId input : inputs) result.inputs.push_back(*result.find_value(graph_[input].name));
    return hoisted_.empty() ? result : in_order(result);
  }

  Graph graph_;
  size_t inputs_;   ///< that the graph had
  size_t outputs_;  ///< that the graph had
  std::vector<Hoisted> hoisted_;
  ValueId rows_;  ///< the global number of rows, once it is needed
};

}  // namespace

HoistedSums hoist_input_sums(const Graph& graph, bool by_share) {
  return Hoister(graph).run(by_share);
}

}  // namespace rannc::ir
