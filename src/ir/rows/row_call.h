#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ir/operators.h"

namespace rannc::ir {

/// What a rule says about the results of a call.
struct RowAnswer {
  std::vector<Rows> rows;  ///< one for each output, or a single one for all of them
  std::string why_mixed;   ///< when some are mixed although no operand is

  static RowAnswer all(Rows rows) { return {{rows}, ""}; }
  static RowAnswer none() { return all({}); }
  static RowAnswer mixed(std::string why) { return {{{.kind = RowKind::mixed}}, std::move(why)}; }
};

/// What torch.arange(0, step * inner * B, step) holds along `dim`: `step` times the number of each
/// of the `inner` elements of each row.
struct RowNumbers {
  int dim = 0;
  int64_t inner = 1;
  int64_t step = 1;
};

/// Where the rows of values lie at some point of the graph, after the writes before it.
class RowState {
 public:
  virtual ~RowState() = default;
  [[nodiscard]] virtual Rows rows(ValueId value) const = 0;
  /// How `value` numbers the rows, if it does.
  [[nodiscard]] virtual std::optional<RowNumbers> row_numbers(ValueId value) const = 0;
};

/// For who reads the arguments of a call and asks no rule for rows.
class ArgumentsOnly : public RowState {
 public:
  [[nodiscard]] Rows rows(ValueId) const override { return {}; }
  [[nodiscard]] std::optional<RowNumbers> row_numbers(ValueId) const override {
    return std::nullopt;
  }
};

/// One call of a registered operator, as the rules see it. Arguments are counted as in the schema;
/// those beyond the recorded ones have their defaults.
class RowCall {
 public:
  RowCall(const Graph& graph, NodeId node, const RowState& state);

  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] const Node& node() const { return node_; }
  [[nodiscard]] std::string_view base() const { return base_; }  ///< base_name() of known_op()
  [[nodiscard]] std::string_view overload() const { return overload_; }
  /// Of base().
  [[nodiscard]] OperatorFamily family() const { return find_operator(base_).family; }
  [[nodiscard]] bool is(Trait trait) const { return has(find_operator(base_).traits, trait); }

  [[nodiscard]] Rows rows(ValueId value) const { return state_.rows(value); }
  [[nodiscard]] std::optional<RowNumbers> row_numbers(ValueId value) const {
    return state_.row_numbers(value);
  }
  /// How `value` counts the rows one by one (torch.arange(B)), if it does.
  [[nodiscard]] std::optional<RowNumbers> row_index(ValueId value) const {
    const auto numbers = row_numbers(value);
    return numbers && numbers->step == 1 ? numbers : std::nullopt;
  }
  [[nodiscard]] const std::vector<AffineInt>& dims(ValueId value) const {
    return graph_[value].dims;
  }
  [[nodiscard]] int rank(ValueId value) const { return static_cast<int>(dims(value).size()); }

  /// Tensor operands in argument order, Nones left out.
  [[nodiscard]] const std::vector<ValueId>& operands() const { return operands_; }
  [[nodiscard]] const Argument& argument(size_t index) const;
  [[nodiscard]] bool is_none(size_t index) const;
  [[nodiscard]] ValueId tensor(size_t index) const;                ///< invalid when it is no tensor
  [[nodiscard]] std::vector<ValueId> tensors(size_t index) const;  ///< a list, or a single tensor
  [[nodiscard]] AffineInt integer(size_t index, int64_t fallback) const;
  /// A list of integers, or a single one; empty when it is neither.
  [[nodiscard]] std::vector<AffineInt> integers(size_t index) const;
  [[nodiscard]] bool boolean(size_t index, bool fallback) const;
  /// The dimensions that an argument names, counted from the front in a tensor of `rank`.
  [[nodiscard]] std::vector<int> dimensions(size_t index, int rank, int64_t fallback) const;
  [[nodiscard]] int dimension(size_t index, int rank, int64_t fallback) const;

  /// First defined output; requires one.
  [[nodiscard]] const Value& result() const { return graph_[result_]; }
  [[nodiscard]] int result_rank() const { return static_cast<int>(result().dims.size()); }

  /// "aten::add.Tensor <what>".
  [[nodiscard]] RowAnswer mixed(const std::string& what) const;
  /// "aten::max.dim over dimension 0, which holds the rows".
  [[nodiscard]] RowAnswer mixed_over(int dim) const;

 private:
  const Graph& graph_;
  const Node& node_;
  const RowState& state_;
  std::string base_;
  std::string overload_;
  std::vector<ValueId> operands_;
  ValueId result_;
};

using RowRule = RowAnswer (*)(const RowCall&);

/// The rule of an operator by its name without namespace, overload and in-place underscore; null
/// when there is none.
[[nodiscard]] RowRule find_row_rule(std::string_view base);

// --- what several families of rules share ---

inline bool is_reduced(const Rows& rows) {
  return rows.kind == RowKind::mean || rows.kind == RowKind::sum;
}
inline bool is_apart(const Rows& rows) { return rows.kind == RowKind::apart; }
inline bool is_mixed(const Rows& rows) { return rows.kind == RowKind::mixed; }
inline bool same_layout(const Rows& a, const Rows& b) {
  return a.kind == b.kind &&
         (!is_apart(a) || (a.dim == b.dim && a.outer == b.outer && a.inner == b.inner));
}
/// Views, casts and copies: their results have the rows in the order of the operand.
inline bool keeps_order_of_rows(OperatorFamily family) {
  using F = OperatorFamily;
  return family == F::identity || family == F::reshape || family == F::permute ||
         family == F::transpose || family == F::movedim || family == F::expand ||
         family == F::slice;
}
inline Rows at_dim(Rows rows, int dim) {
  if (is_apart(rows)) rows.dim = dim;
  return rows;
}

/// Rows of a value of these dimensions in which all rows are alike: none, apart, or mixed when no
/// single dimension is a multiple of the rows.
[[nodiscard]] Rows rows_of_shape(const std::vector<AffineInt>& dims);

/// Rows after the same elements, in the same order, are given other dimensions; nullopt when no
/// dimension has the form (outer, rows, inner).
[[nodiscard]] std::optional<Rows> reshaped(const Rows& rows, const std::vector<AffineInt>& from,
                                           const std::vector<AffineInt>& to);

/// An operand's rows, with the dimension that they have in the result. -1: nowhere.
struct Placed {
  Rows rows;
  int dim = 0;
};
/// The result of operands whose rows must lie in the same place of the result.
[[nodiscard]] RowAnswer meet(const RowCall& call, const std::vector<Placed>& operands);
/// The same for operands that broadcast against each other, aligned from the right, to `rank`.
[[nodiscard]] RowAnswer broadcast(const RowCall& call, const std::vector<ValueId>& operands,
                                  int rank);

}  // namespace rannc::ir
