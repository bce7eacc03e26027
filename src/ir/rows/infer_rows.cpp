#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ir/effects.h"
#include "ir/rows/literals.h"
#include "ir/rows/row_call.h"
#include "ir/rows/row_inference.h"
#include "ir/rows/sorted_rows.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

/// Operators whose result numbers the rows when their operand does: views, casts and copies.
bool passes_row_numbers(const RowCall& call) {
  return keeps_order_of_rows(call.family()) &&
         (call.family() != OperatorFamily::identity || call.is(Trait::passes));
}

/// Whether integers of the operators may depend on the rows: as sizes, or by a rule's own
/// reckoning.
bool takes_row_count(OperatorFamily family) {
  using F = OperatorFamily;
  static constexpr std::array kFamilies{
      F::reshape, F::expand, F::create,    F::create_like,       F::full, F::counting, F::slice,
      F::narrow,  F::split,  F::repeat,    F::repeat_interleave, F::add,  F::multiply, F::divide,
      F::fill,    F::copy,   F::rows_first};
  return std::ranges::find(kFamilies, family) != kFamilies.end();
}

/// The numbers that arange(B), arange(inner * B) or arange(0, step * B, step) gives the rows.
std::optional<RowNumbers> numbers_of(const RowCall& call) {
  const bool starts_at_zero =
      !call.overload().starts_with("start") || call.argument(0) == Argument{AffineInt{}};
  const bool is_stepped = call.overload() == "start_step";
  const AffineInt step = is_stepped ? call.integer(2, 0) : AffineInt{1, 0};
  const bool counts = call.base() == "arange" && starts_at_zero && !step.depends_on_rows() &&
                      step.fixed > 0 && is_apart(rows_of_shape(call.result().dims));
  if (!counts) return std::nullopt;
  return RowNumbers{.inner = call.result().dims.front().per_row, .step = step.fixed};
}

class Inferrer : public RowState {
 public:
  explicit Inferrer(const Graph& graph)
      : graph_(graph),
        numbers_(graph.values.size()),
        is_written_(graph.values.size()),
        changes_(graph.values.size()),
        sorted_(graph, *this) {
    found_.begins.resize(graph.nodes.size());
    found_.to_state.resize(graph.nodes.size());
    for (const Value& value : graph.values) {
      found_.rows.push_back(value.kind == ValueKind::result ? Rows{} : value.rows);
    }
  }

  RowInference run() {
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) visit({index});
    return std::move(found_);
  }

  // A value made before its storage was overwritten with something else is not what it was.
  [[nodiscard]] Rows rows(ValueId value) const override {
    if (value == pretended_) {
      const RowNumbers& numbers = *numbers_[value.index];
      return {.kind = RowKind::apart, .dim = numbers.dim, .inner = numbers.inner};
    }
    Rows rows = found_.rows[value.index];
    const Change& change = changes_[graph_[value].storage.index];
    const NodeId made = graph_[value].producer;
    const bool is_older = change.node.valid() && (!made.valid() || made < change.node);
    if (!is_older) return rows;
    if (graph_[value].dims == change.dims) return change.rows;
    return {.kind = RowKind::mixed};
  }
  [[nodiscard]] std::optional<RowNumbers> row_numbers(ValueId value) const override {
    return is_written_[graph_[value].storage.index] ? std::nullopt : numbers_[value.index];
  }

 private:
  /// The last write that changed how a storage depends on the rows.
  struct Change {
    NodeId node;
    Rows rows;
    std::vector<AffineInt> dims;  ///< those of the value that was written
  };

  void visit(NodeId id) {
    const Node& node = graph_[id];
    const RowCall call(graph_, id, *this);
    const bool is_begun =
        std::ranges::any_of(call.operands(), [&](ValueId v) { return is_mixed(rows(v)); });
    const bool is_independent = std::ranges::all_of(
        call.operands(), [&](ValueId v) { return rows(v).kind == RowKind::none; });
    const bool has_rule = (node.kind == OpKind::dispatcher || !node.like.empty()) &&
                          known_op(node).starts_with("aten::");
    const OperatorFamily family = has_rule ? call.family() : OperatorFamily::none;
    const RowRule rule = has_rule ? find_row_rule(call.base()) : nullptr;
    const bool has_result =
        std::ranges::any_of(node.outputs, [](ValueId output) { return output.valid(); });

    RowAnswer answer;
    const auto undone = has_result ? sorted_.undone(id, rule) : std::nullopt;
    if (undone) {
      answer = *undone;
    } else if (rule != nullptr && has_result && !(is_independent && is_plain(node))) {
      answer = rule(call);
    }
    const bool is_answered = !answer.rows.empty() && std::ranges::none_of(answer.rows, is_mixed);
    if (is_answered && !takes_row_count(family) && has_row_dependent_literal(node)) {
      answer = call.mixed("computes with the number of rows");
    }
    // Rows before the writes of this node take effect: an in-place result replaces its operand.
    std::vector<Rows> results;
    for (size_t place = 0; place < node.outputs.size(); ++place) {
      if (node.outputs[place].valid()) results.push_back(settle(call, answer, place));
    }
    if (node.by_share && takes_means(call)) {
      // As if it were linear in them.
      const Rows mean{.kind = RowKind::mean, .proved = all_proved(call)};
      std::ranges::replace_if(results, is_mixed, mean);
    }
    sorted_.visit(id, rule);
    note_writes(id, call, results);
    size_t next = 0;
    for (ValueId output : node.outputs) {
      if (!output.valid()) continue;
      found_.rows[output.index] = results[next++];
    }
    if (rule != nullptr && has_result) note_row_numbers(id, call, rule);
    const bool is_mixing = std::ranges::any_of(results, is_mixed);
    if (is_mixing && !is_begun) {
      found_.begins[id.index] = !answer.why_mixed.empty() ? answer.why_mixed : unknown_reason(call);
    }
  }

  /// Whether neither results nor arguments depend on the rows.
  [[nodiscard]] bool is_plain(const Node& node) const {
    const auto depends = [](const AffineInt& size) { return size.depends_on_rows(); };
    for (ValueId output : node.outputs) {
      if (output.valid() && std::ranges::any_of(graph_[output].dims, depends)) return false;
    }
    return !has_row_dependent_literal(node);
  }

  /// Whether it computes something without rows from means over the batch and constants alone.
  [[nodiscard]] bool takes_means(const RowCall& call) const {
    return is_plain(call.node()) && std::ranges::all_of(call.operands(), [&](ValueId operand) {
             const RowKind kind = rows(operand).kind;
             return kind == RowKind::mean || kind == RowKind::none;
           });
  }

  /// A rule's answer for one output, or a guess from the shapes when there is none that fits.
  [[nodiscard]] Rows settle(const RowCall& call, const RowAnswer& answer, size_t place) const {
    const Value& output = graph_[call.node().outputs[place]];
    if (answer.rows.empty()) return guess(call, output);
    Rows rows = answer.rows[std::min(place, answer.rows.size() - 1)];
    const Rows shape = rows_of_shape(output.dims);
    if (is_apart(rows)) {
      const bool fits =
          is_apart(shape) && shape.dim == rows.dim && shape.inner == rows.outer * rows.inner;
      if (!fits) return guess(call, output);
      rows.proved = rows.proved && all_proved(call);
    } else if (shape.kind != RowKind::none) {
      rows = {.kind = RowKind::mixed};
    } else {
      rows = {.kind = rows.kind,
              .proved = rows.kind == RowKind::none || is_mixed(rows) ||
                        (rows.proved && all_proved(call))};
    }
    return rows;
  }

  [[nodiscard]] bool all_proved(const RowCall& call) const {
    return std::ranges::all_of(call.operands(), [&](ValueId v) { return rows(v).proved; });
  }

  [[nodiscard]] Rows guess(const RowCall& call, const Value& output) const {
    const Rows shape = rows_of_shape(output.dims);
    bool depends = shape.kind != RowKind::none || !is_plain(call.node());
    std::optional<Rows> apart;
    for (ValueId operand : call.operands()) {
      const Rows operand_rows = rows(operand);
      if (is_mixed(operand_rows) || is_reduced(operand_rows)) return {.kind = RowKind::mixed};
      if (!is_apart(operand_rows)) continue;
      depends = true;
      if (!apart || operand_rows.outer * operand_rows.inner == shape.inner) apart = operand_rows;
    }
    if (!depends) return {};
    if (!apart || !is_apart(shape)) return {.kind = RowKind::mixed};
    Rows guessed = shape;
    guessed.proved = false;
    if (apart->outer * apart->inner == shape.inner) {
      guessed.outer = apart->outer;
      guessed.inner = apart->inner;
    }
    return guessed;
  }

  void note_writes(NodeId id, const RowCall& call, const std::vector<Rows>& results) {
    const Node& node = graph_[id];
    if (node.writes.empty()) return;
    const auto is_dependent = [&](ValueId v) { return rows(v).kind != RowKind::none; };
    const bool depends = std::ranges::any_of(call.operands(), is_dependent) ||
                         std::ranges::any_of(results, [](const Rows& result) {
                           return result.kind != RowKind::none;
                         });
    for (ValueId written : node.writes) {
      is_written_[graph_[written].storage.index] = true;
      if (depends && is_state(graph_, written)) note_state(id, call, written);
      const Value& value = graph_[written];
      // An in-place operator returns what it wrote; other writes come from all operands.
      Rows content = depends ? Rows{.kind = RowKind::mixed} : Rows{};
      size_t next = 0;
      for (ValueId output : node.outputs) {
        if (!output.valid()) continue;
        const Rows result = results[next++];
        if (graph_[output].storage == value.storage) content = result;
      }
      const Rows before = rows(written);
      if (same_layout(content, before)) continue;
      // A constant written to some elements of rows leaves the rest of them what they were.
      if (content.kind == RowKind::none && is_apart(before)) continue;
      changes_[value.storage.index] = {id, content, value.dims};
    }
  }

  void note_state(NodeId id, const RowCall& call, ValueId written) {
    const bool is_statistic =
        call.is(Trait::statistics) && (written == call.tensor(3) || written == call.tensor(4));
    if (is_statistic || !found_.to_state[id.index].empty()) return;
    const Value& state = graph_[graph_[written].storage];
    found_.to_state[id.index] =
        fmt::format("{} writes what it computes from the batch to the {} '{}'", graph_[id].op,
                    state.kind == ValueKind::buffer ? "buffer" : "parameter", state.name);
  }

  void note_row_numbers(NodeId id, const RowCall& call, RowRule rule) {
    const ValueId output = graph_[id].outputs.front();
    if (!output.valid()) return;
    if (call.operands().empty()) {
      numbers_[output.index] = numbers_of(call);
      return;
    }
    const ValueId operand = call.operands().front();
    const auto numbers = row_numbers(operand);
    if (!numbers || !passes_row_numbers(call)) return;
    pretended_ = operand;
    const Rows moved = rule(call).rows.front();
    pretended_ = {};
    if (is_apart(moved) && moved.outer == 1 && moved.inner == numbers->inner) {
      numbers_[output.index] = RowNumbers{moved.dim, moved.inner, numbers->step};
    }
  }

  [[nodiscard]] static std::string unknown_reason(const RowCall& call) {
    const std::string_view why = find_row_rule(call.base()) == nullptr
                                     ? "is not known to keep rows apart"
                                     : "gives a shape in which the rows cannot be told apart";
    return fmt::format("{} {}", call.node().op, why);
  }

  const Graph& graph_;
  RowInference found_;
  std::vector<std::optional<RowNumbers>> numbers_;
  std::vector<bool> is_written_;  // by storage
  std::vector<Change> changes_;   // by storage
  SortedRows sorted_;
  ValueId pretended_;  // taken as rows for a moment, to follow row numbers through a view
};

}  // namespace

namespace {

/// Says in which dimension the rows of a mixed value lie, where the shape leaves no doubt.
void locate_rows(Value& value) {
  if (value.rows.kind != RowKind::mixed) return;
  const auto found = std::ranges::find(value.dims, AffineInt{0, 1});
  if (found != value.dims.end()) value.rows.dim = static_cast<int>(found - value.dims.begin());
}

}  // namespace

RowInference infer(const Graph& graph) { return Inferrer(graph).run(); }

Graph infer_rows(const Graph& graph) {
  RowInference found = infer(graph);
  Graph result = graph;
  for (size_t index = 0; index < result.values.size(); ++index) {
    if (result.values[index].kind == ValueKind::result) {
      result.values[index].rows = found.rows[index];
      locate_rows(result.values[index]);
    }
  }
  return result;
}

}  // namespace rannc::ir
