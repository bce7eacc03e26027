#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {

RowAnswer create(const RowCall& call) {
  const Rows rows = rows_of_shape(call.result().dims);
  if (is_mixed(rows)) return call.mixed("has a shape that is no multiple of the rows");
  return RowAnswer::all(rows);
}

RowAnswer create_like(const RowCall& call) {
  if (!call.operands().empty()) {
    const ValueId model = call.operands().front();
    const Rows rows = call.rows(model);
    if (is_apart(rows) && call.dims(model) == call.result().dims) return RowAnswer::all(rows);
  }
  return create(call);
}

RowAnswer full(const RowCall& call) {
  // scalar_tensor(value), full(size, value), full_like(self, value), new_full(self, size, value)
  const size_t place = call.base() == "scalar_tensor" ? 0 : call.base() == "new_full" ? 2 : 1;
  const AffineInt value = call.integer(place, 0);
  if (!value.depends_on_rows()) {
    return call.base() == "full_like" ? create_like(call) : create(call);
  }
  // The shares' row counts add up to the whole's.
  const bool is_sum = value.fixed == 0 && rows_of_shape(call.result().dims).kind == RowKind::none;
  if (!is_sum) return call.mixed("computes with the number of rows");
  return RowAnswer::all({.kind = RowKind::sum});
}

RowAnswer counting(const RowCall& call) {
  if (rows_of_shape(call.result().dims).kind == RowKind::none) return pointwise(call);
  return call.mixed("numbers the rows, and a share of the batch does not know its place");
}

}  // namespace rannc::ir::rules
