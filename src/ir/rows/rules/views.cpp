#include <algorithm>
#include <numeric>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

/// Moves dimensions: result dimension i was dimension order[i] of the operand.
RowAnswer reordered(const RowCall& call, const std::vector<int>& order) {
  const Rows rows = call.rows(call.operands().front());
  const auto found = std::ranges::find(order, rows.dim);
  if (!is_apart(rows) || found == order.end()) return RowAnswer::all(rows);
  return RowAnswer::all(at_dim(rows, static_cast<int>(found - order.begin())));
}

std::vector<int> identity_order(int rank) {
  std::vector<int> order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Rows of `length` elements from `start` on along the dimension of the rows: whole groups of
/// (rows, inner) only.
std::optional<Rows> cut(const Rows& rows, const AffineInt& start, const AffineInt& length) {
  if (start.fixed != 0 || length.fixed != 0 || length.per_row <= 0) return std::nullopt;
  if (start.per_row % rows.inner != 0 || length.per_row % rows.inner != 0) return std::nullopt;
  Rows result = rows;
  result.outer = length.per_row / rows.inner;
  return result;
}

RowAnswer cut_one(const RowCall& call, int dim, const AffineInt& start) {
  const Rows rows = call.rows(call.operands().front());
  if (!is_apart(rows) || rows.dim != dim) {
    return start.depends_on_rows() ? call.mixed("begins at the number of rows")
                                   : RowAnswer::all(rows);
  }
  const auto part = cut(rows, start, call.result().dims.at(static_cast<size_t>(dim)));
  return part ? RowAnswer::all(*part) : call.mixed_over(dim);
}

}  // namespace

RowAnswer reshape(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (!is_apart(rows)) return RowAnswer::all(rows);
  // These count elements of another size, which changes only what comes last.
  const bool changes_elements = call.overload() == "dtype" || call.base() == "view_as_real" ||
                                call.base() == "view_as_complex";
  const bool is_last = rows.dim + 1 == call.rank(operand) && call.base() != "view_as_real";
  const auto moved = changes_elements && !is_last
                         ? std::optional(rows)
                         : reshaped(rows, call.dims(operand), call.result().dims);
  return moved ? RowAnswer::all(*moved)
               : call.mixed("gives a shape that interleaves the rows with something else");
}

RowAnswer permute(const RowCall& call) {
  return reordered(call, call.dimensions(1, call.result_rank(), 0));
}

RowAnswer transpose(const RowCall& call) {
  const int rank = call.result_rank();
  if (rank < 2) return identity(call);
  // t, mT, numpy_T and the like name no dimensions: the last two, but numpy_T reverses them all.
  std::vector<int> order = identity_order(rank);
  if (call.base() == "numpy_T") {
    std::ranges::reverse(order);
  } else {
    const auto a = static_cast<size_t>(call.dimension(1, rank, -2));
    const auto b = static_cast<size_t>(call.dimension(2, rank, -1));
    std::swap(order.at(a), order.at(b));
  }
  return reordered(call, order);
}

RowAnswer movedim(const RowCall& call) {
  const int rank = call.result_rank();
  const std::vector<int> from = call.dimensions(1, rank, 0);
  const std::vector<int> to = call.dimensions(2, rank, 0);
  std::vector<int> order(static_cast<size_t>(rank), -1);
  for (size_t i = 0; i < from.size(); ++i) order.at(static_cast<size_t>(to.at(i))) = from[i];
  int next = 0;
  for (int& dim : order) {
    while (std::ranges::find(from, next) != from.end()) ++next;
    if (dim < 0) dim = next++;
  }
  return reordered(call, order);
}

RowAnswer expand(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (is_apart(rows)) return broadcast(call, {operand}, call.result_rank());
  if (rows.kind != RowKind::none) return RowAnswer::all(rows);
  return create(call);
}

RowAnswer broadcast_tensors(const RowCall& call) {
  const int rank = call.result_rank();
  // An operand without rows is alike in all of them, however the others lay them out.
  const Rows others = broadcast(call, call.operands(), rank).rows.front();
  RowAnswer answer;
  for (ValueId operand : call.operands()) {
    const Rows rows = call.rows(operand);
    const bool is_alike = rows.kind == RowKind::none && is_apart(others);
    answer.rows.push_back(is_alike ? others : at_dim(rows, rows.dim + rank - call.rank(operand)));
  }
  answer.why_mixed = call.node().op + " gives a mean or sum over the batch to rows";
  return answer;
}

RowAnswer select(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const int dim = call.dimension(1, call.rank(operand), 0);
  if (dim == rows.dim) return call.mixed_over(dim);
  return RowAnswer::all(at_dim(rows, rows.dim - (dim < rows.dim ? 1 : 0)));
}

RowAnswer slice(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const int dim = call.dimension(1, call.rank(operand), 0);
  AffineInt start = call.integer(2, 0);
  const AffineInt size = call.dims(operand).at(static_cast<size_t>(dim));
  if (start.fixed < 0 || start.per_row < 0) {
    start = {start.fixed + size.fixed, start.per_row + size.per_row};
  }
  const bool is_stepped = call.integer(4, 1) != AffineInt{1, 0};
  const Rows rows = call.rows(operand);
  if (is_stepped && is_apart(rows) && rows.dim == dim) return call.mixed_over(dim);
  return cut_one(call, dim, start);
}

RowAnswer narrow(const RowCall& call) {
  const int dim = call.dimension(1, call.rank(call.operands().front()), 0);
  return call.overload() == "Tensor" ? along_dimension(call)
                                     : cut_one(call, dim, call.integer(2, 0));
}

RowAnswer split(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  const int dim = call.dimension(2, call.rank(operand), 0);
  if (!is_apart(rows) || rows.dim != dim) return RowAnswer::all(rows);
  RowAnswer answer;
  AffineInt start;
  for (ValueId output : call.node().outputs) {
    if (!output.valid()) return call.mixed_over(dim);
    const AffineInt length = call.dims(output).at(static_cast<size_t>(dim));
    const auto part = cut(rows, start, length);
    if (!part) return call.mixed_over(dim);
    answer.rows.push_back(*part);
    start = {start.fixed + length.fixed, start.per_row + length.per_row};
  }
  return answer;
}

RowAnswer unbind(const RowCall& call) { return select(call); }

RowAnswer diagonal(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const int a = call.dimension(2, call.rank(operand), 0);
  const int b = call.dimension(3, call.rank(operand), 1);
  if (rows.dim == a || rows.dim == b) return call.mixed_over(rows.dim);
  return RowAnswer::all(at_dim(rows, rows.dim - (a < rows.dim ? 1 : 0) - (b < rows.dim ? 1 : 0)));
}

}  // namespace rannc::ir::rules
