#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/rows.h"

namespace rannc::runtime {

/// Sizes of `value` at `rows` rows.
[[nodiscard]] std::vector<int64_t> sizes_at(const ir::Value& value, int64_t rows);

/// Rows `range` of a tensor of `total` rows with the rows as dimension 0, as a view. Contiguous, it
/// is the wire form: [rows, dimensions before, outer, inner, dimensions after].
[[nodiscard]] at::Tensor rows_first(const at::Tensor& tensor, const ir::Rows& layout, int64_t total,
                                    plan::RowRange range);

/// Sizes of rows_first() of `rows` rows of `value`.
[[nodiscard]] std::vector<int64_t> wire_sizes(const ir::Value& value, int64_t rows);

/// Rows `range` of a tensor of `total` rows, laid out like a value of as many rows; a view where
/// the rows lie together.
[[nodiscard]] at::Tensor take_rows(const at::Tensor& tensor, const ir::Rows& layout, int64_t total,
                                   plan::RowRange range);

/// A tensor that arrives in parts: ranges of rows, or summands.
struct Assembly {
  at::Tensor tensor;      ///< undefined until the first part
  bool borrowed = false;  ///< shares memory with somebody else's tensor, so it is never written
};

/// Makes room for all of `value` at `rows` rows, without a value yet.
void allocate(Assembly& whole, const ir::Value& value, int64_t rows, c10::Device device);

/// Puts `part`, laid out like a value of range.size() rows, at rows `range`. A part that covers
/// everything is taken over without a copy.
void place_rows(Assembly& whole, const ir::Value& value, int64_t rows, plan::RowRange range,
                const at::Tensor& part);

/// Adds `part` in wire form to rows `range`; rows without any part are zero.
void add_rows(Assembly& whole, const ir::Value& value, int64_t rows, plan::RowRange range,
              const at::Tensor& part);

/// Adds a summand of the same shape.
void add_whole(Assembly& whole, const at::Tensor& part);

}  // namespace rannc::runtime
