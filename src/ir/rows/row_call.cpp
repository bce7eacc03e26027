#include "ir/rows/row_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc::ir {

RowCall::RowCall(const Graph& graph, NodeId node, const RowState& state)
    : graph_(graph), node_(graph[node]), state_(state), operands_(graph.operands(node)) {
  const std::string& op = known_op(node_);
  const size_t dot = op.find('.');
  if (dot != std::string::npos) overload_ = op.substr(dot + 1);
  base_ = base_name(op);
  for (ValueId output : node_.outputs) {
    if (output.valid() && !result_.valid()) result_ = output;
  }
}

const Argument& RowCall::argument(size_t index) const {
  static const Argument kNone = None{};
  return index < node_.inputs.size() ? node_.inputs[index] : kNone;
}

bool RowCall::is_none(size_t index) const { return std::holds_alternative<None>(argument(index)); }

ValueId RowCall::tensor(size_t index) const {
  const auto* value = std::get_if<ValueId>(&argument(index));
  return value == nullptr ? ValueId{} : *value;
}

std::vector<ValueId> RowCall::tensors(size_t index) const {
  if (const auto* list = std::get_if<ValueList>(&argument(index))) return list->values;
  const ValueId single = tensor(index);
  return single.valid() ? std::vector{single} : std::vector<ValueId>{};
}

AffineInt RowCall::integer(size_t index, int64_t fallback) const {
  const auto* value = std::get_if<AffineInt>(&argument(index));
  return value == nullptr ? AffineInt{fallback, 0} : *value;
}

std::vector<AffineInt> RowCall::integers(size_t index) const {
  if (const auto* list = std::get_if<std::vector<AffineInt>>(&argument(index))) return *list;
  if (const auto* value = std::get_if<AffineInt>(&argument(index))) return {*value};
  return {};
}

bool RowCall::boolean(size_t index, bool fallback) const {
  const auto* value = std::get_if<bool>(&argument(index));
  return value == nullptr ? fallback : *value;
}

std::vector<int> RowCall::dimensions(size_t index, int rank, int64_t fallback) const {
  std::vector<AffineInt> given = integers(index);
  const bool is_list = std::holds_alternative<std::vector<AffineInt>>(argument(index));
  if (given.empty() && !is_list) given.push_back({fallback, 0});
  std::vector<int> dims;
  for (const AffineInt& dim : given) {
    dims.push_back(static_cast<int>(dim.fixed < 0 ? dim.fixed + rank : dim.fixed));
  }
  return dims;
}

int RowCall::dimension(size_t index, int rank, int64_t fallback) const {
  const std::vector<int> dims = dimensions(index, rank, fallback);
  return dims.empty() ? -1 : dims.front();
}

RowAnswer RowCall::mixed(const std::string& what) const {
  return RowAnswer::mixed(fmt::format("{} {}", node_.op, what));
}

RowAnswer RowCall::mixed_over(int dim) const {
  return mixed(fmt::format("over dimension {}, which holds the rows", dim));
}

Rows rows_of_shape(const std::vector<AffineInt>& dims) {
  const auto count = std::ranges::count_if(dims, &AffineInt::depends_on_rows);
  if (count == 0) return {};
  const auto found = std::ranges::find_if(dims, &AffineInt::depends_on_rows);
  if (count > 1 || found->fixed != 0) return {.kind = RowKind::mixed};
  return {.kind = RowKind::apart,
          .dim = static_cast<int>(found - dims.begin()),
          .inner = found->per_row};
}

std::optional<Rows> reshaped(const Rows& rows, const std::vector<AffineInt>& from,
                             const std::vector<AffineInt>& to) {
  const Rows place = rows_of_shape(to);
  if (!is_apart(place)) return std::nullopt;
  // No element is in the wrong place.
  if (std::ranges::find(from, AffineInt{}) != from.end()) return place;

  // In row-major order the elements are (before, rows, after), before and after being products of
  // sizes; the new dimension must hold the rows with what is left of both.
  int64_t before = rows.outer;
  for (int d = 0; d < rows.dim; ++d) before *= from[static_cast<size_t>(d)].fixed;
  int64_t after = rows.inner;
  for (size_t d = static_cast<size_t>(rows.dim) + 1; d < from.size(); ++d) after *= from[d].fixed;

  const auto dim = static_cast<size_t>(place.dim);
  int64_t new_before = 1;
  for (size_t d = 0; d < dim; ++d) new_before *= to[d].fixed;
  int64_t new_after = 1;
  for (size_t d = dim + 1; d < to.size(); ++d) new_after *= to[d].fixed;
  if (new_before == 0 || new_after == 0) return std::nullopt;
  if (before % new_before != 0 || after % new_after != 0) return std::nullopt;

  Rows result = rows;
  result.dim = place.dim;
  result.outer = before / new_before;
  result.inner = after / new_after;
  if (to[dim].per_row != result.outer * result.inner) return std::nullopt;
  return result;
}

RowAnswer meet(const RowCall& call, const std::vector<Placed>& operands) {
  std::optional<Rows> rows;
  bool has_reduced = false;
  for (const Placed& operand : operands) {
    if (is_mixed(operand.rows)) return RowAnswer::all(operand.rows);
    has_reduced = has_reduced || is_reduced(operand.rows);
  }
  for (const Placed& operand : operands) {
    if (!is_apart(operand.rows)) continue;
    if (operand.dim < 0) return call.mixed_over(operand.rows.dim);
    const Rows placed = at_dim(operand.rows, operand.dim);
    if (!rows) rows = placed;
    rows->proved = rows->proved && placed.proved;
    if (!same_layout(*rows, placed)) {
      return call.mixed(fmt::format(
          "brings rows together that lie in different places (dimension {}: {} x rows x {}, "
          "dimension {}: {} x rows x {})",
          rows->dim, rows->outer, rows->inner, placed.dim, placed.outer, placed.inner));
    }
  }
  if (has_reduced && rows)
    return call.mixed("uses a mean or sum over the batch together with rows");
  if (has_reduced) return call.mixed("is not linear in a mean or sum over the batch");
  return RowAnswer::all(rows.value_or(Rows{}));
}

RowAnswer broadcast(const RowCall& call, const std::vector<ValueId>& operands, int rank) {
  std::vector<Placed> placed;
  for (ValueId operand : operands) {
    if (!operand.valid()) continue;
    const Rows rows = call.rows(operand);
    placed.push_back({rows, rows.dim + rank - call.rank(operand)});
  }
  return meet(call, placed);
}

}  // namespace rannc::ir
