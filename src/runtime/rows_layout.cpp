#include "runtime/rows_layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "rannc/ops/dtype.h"

namespace rannc::runtime {
namespace {

at::TensorOptions options_of(const ir::Value& value, c10::Device device) {
  return at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(device);
}

bool covers(plan::RowRange range, int64_t rows) { return range.begin == 0 && range.end == rows; }

/// The inverse of rows_first(): a view with the rows back in their dimension where one is possible.
at::Tensor rows_back(const at::Tensor& wire, const ir::Rows& layout) {
  return wire.movedim(0, layout.dim + 1).flatten(layout.dim, layout.dim + 2);
}

}  // namespace

std::vector<int64_t> sizes_at(const ir::Value& value, int64_t rows) {
  std::vector<int64_t> sizes;
  for (const ir::AffineInt& dim : value.dims) sizes.push_back(dim.at(rows));
  return sizes;
}

at::Tensor rows_first(const at::Tensor& tensor, const ir::Rows& layout, int64_t total,
                      plan::RowRange range) {
  return tensor.unflatten(layout.dim, {layout.outer, total, layout.inner})
      .movedim(layout.dim + 1, 0)
      .narrow(0, range.begin, range.size());
}

std::vector<int64_t> wire_sizes(const ir::Value& value, int64_t rows) {
  std::vector<int64_t> sizes = sizes_at(value, rows);
  const auto dim = sizes.begin() + value.rows.dim;
  *dim = value.rows.inner;
  sizes.insert(dim, value.rows.outer);
  sizes.insert(sizes.begin(), rows);
  return sizes;
}

at::Tensor take_rows(const at::Tensor& tensor, const ir::Rows& layout, int64_t total,
                     plan::RowRange range) {
  if (covers(range, total)) return tensor;
  if (layout.outer == 1) {
    return tensor.narrow(layout.dim, range.begin * layout.inner, range.size() * layout.inner);
  }
  return rows_back(rows_first(tensor, layout, total, range), layout);
}

void allocate(Assembly& whole, const ir::Value& value, int64_t rows, c10::Device device) {
  whole.tensor = at::empty(sizes_at(value, rows), options_of(value, device));
}

void place_rows(Assembly& whole, const ir::Value& value, int64_t rows, plan::RowRange range,
                const at::Tensor& part) {
  if (!whole.tensor.defined() && covers(range, rows)) {
    whole = {part, /*borrowed=*/true};
    return;
  }
  if (!whole.tensor.defined()) allocate(whole, value, rows, part.device());
  rows_first(whole.tensor, value.rows, rows, range)
      .copy_(rows_first(part, value.rows, range.size(), {0, range.size()}));
}

void add_rows(Assembly& whole, const ir::Value& value, int64_t rows, plan::RowRange range,
              const at::Tensor& part) {
  if (!whole.tensor.defined() && covers(range, rows)) {
    whole = {rows_back(part, value.rows), /*borrowed=*/true};
    return;
  }
  if (!whole.tensor.defined()) {
    whole.tensor = at::zeros(sizes_at(value, rows), options_of(value, part.device()));
  } else if (whole.borrowed) {
    whole = {whole.tensor.clone(), /*borrowed=*/false};
  }
  rows_first(whole.tensor, value.rows, rows, range).add_(part);
}

void add_whole(Assembly& whole, const at::Tensor& part) {
  // Out of place: these are scalars, or values of plans with one replica and one micro-batch.
  whole.tensor = whole.tensor.defined() ? whole.tensor.add(part) : part;
}

}  // namespace rannc::runtime
