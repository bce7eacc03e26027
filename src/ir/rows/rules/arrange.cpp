#include <algorithm>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

bool any_reduced(const RowCall& call, const std::vector<ValueId>& parts) {
  return std::ranges::any_of(parts, [&](ValueId part) { return is_reduced(call.rows(part)); });
}

/// Means next to means stay means, even next to constants; sums only next to sums.
RowAnswer side_by_side(const RowCall& call, const std::vector<ValueId>& parts) {
  bool means = true;
  bool sums = true;
  for (ValueId part : parts) {
    const RowKind kind = call.rows(part).kind;
    if (kind == RowKind::mixed) return RowAnswer::all(call.rows(part));
    means = means && (kind == RowKind::mean || kind == RowKind::none);
    sums = sums && kind == RowKind::sum;
  }
  if (!means && !sums) return call.mixed("joins different kinds of batch reductions");
  return RowAnswer::all({.kind = means ? RowKind::mean : RowKind::sum});
}

/// All rows' parts lie one after the other: (a, rows, i) then (b, rows, i) is (a + b, rows, i).
RowAnswer joined(const RowCall& call, const std::vector<ValueId>& parts, int dim) {
  Rows rows = call.rows(parts.front());
  for (size_t i = 1; i < parts.size(); ++i) {
    const Rows next = call.rows(parts[i]);
    if (!is_apart(next) || next.dim != dim || next.inner != rows.inner) return call.mixed_over(dim);
    rows.outer += next.outer;
  }
  return RowAnswer::all(rows);
}

}  // namespace

RowAnswer cat(const RowCall& call) {
  const int rank = call.result_rank();
  std::vector<ValueId> parts = call.tensors(0);
  // An empty vector joins anything, of whatever rank.
  std::erase_if(parts, [&](ValueId part) {
    return rank != 1 && call.dims(part) == std::vector{AffineInt{}};
  });
  if (parts.empty()) return RowAnswer::none();
  if (any_reduced(call, parts)) return side_by_side(call, parts);
  const int dim = call.dimension(1, rank, 0);
  const Rows first = call.rows(parts.front());
  if (is_apart(first) && first.dim == dim) return joined(call, parts, dim);
  const RowAnswer answer = broadcast(call, parts, rank);
  if (is_apart(answer.rows.front()) && answer.rows.front().dim == dim) return call.mixed_over(dim);
  return answer;
}

RowAnswer stack(const RowCall& call) {
  const std::vector<ValueId> parts = call.tensors(0);
  if (any_reduced(call, parts)) return side_by_side(call, parts);
  const int dim = call.dimension(1, call.result_rank(), 0);
  std::vector<Placed> placed;
  for (ValueId part : parts) {
    const Rows rows = call.rows(part);
    placed.push_back({rows, rows.dim + (dim <= rows.dim ? 1 : 0)});
  }
  return meet(call, placed);
}

RowAnswer repeat(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (rows.kind == RowKind::none) return create(call);
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const std::vector<AffineInt> repeats = call.integers(1);
  Rows result = at_dim(rows, rows.dim + call.result_rank() - call.rank(operand));
  // tile() may name fewer dimensions than the tensor has.
  const int place = result.dim - (call.result_rank() - static_cast<int>(repeats.size()));
  if (place >= 0) {
    const AffineInt times = repeats.at(static_cast<size_t>(place));
    if (times.depends_on_rows()) return call.mixed_over(rows.dim);
    result.outer *= times.fixed;
  }
  return RowAnswer::all(result);
}

RowAnswer repeat_interleave(const RowCall& call) {
  const ValueId operand = call.operands().front();
  Rows rows = call.rows(operand);
  const AffineInt times = call.integer(1, 1);
  if (rows.kind == RowKind::none) {
    // Each of `outer` elements fills a run over all rows.
    Rows result = rows_of_shape(call.result().dims);
    if (is_apart(result) && times.fixed == 0 && times.per_row != 0) {
      result.outer = result.inner / times.per_row;
      result.inner = times.per_row;
    }
    return RowAnswer::all(result);
  }
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const bool is_flat = call.is_none(2);
  if (is_flat) {
    int64_t total = rows.outer * rows.inner;
    for (const AffineInt& dim : call.dims(operand)) total *= dim.depends_on_rows() ? 1 : dim.fixed;
    const auto flat = reshaped(rows, call.dims(operand), {{0, total}});
    if (!flat) return call.mixed("gives a shape that interleaves the rows with something else");
    rows = *flat;
  }
  const int dim = is_flat ? 0 : call.dimension(2, call.rank(operand), 0);
  if (rows.dim != dim) return RowAnswer::all(rows);
  const bool is_tensor = !std::holds_alternative<AffineInt>(call.argument(1));
  if (is_tensor || times.depends_on_rows()) return call.mixed_over(dim);
  rows.inner *= times.fixed;
  return RowAnswer::all(rows);
}

}  // namespace rannc::ir::rules
