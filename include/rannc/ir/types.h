#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rannc/util/id.h"

namespace rannc::ir {

using NodeId = Id<struct NodeTag>;
using ValueId = Id<struct ValueTag>;
/// A torch object (tensor constant, scripted function, Python function) in the capture's side
/// table.
using ObjectId = Id<struct ObjectTag>;

/// Lower-case enumerators are the names used in files and in Python.
enum class DType {
  float64,
  float32,
  float16,
  bfloat16,
  int64,
  int32,
  int16,
  int8,
  uint8,
  boolean,
  complex64,
  complex128
};

[[nodiscard]] int64_t size_bytes(DType dtype);
[[nodiscard]] std::string_view name(DType dtype);            ///< "float32"
[[nodiscard]] DType dtype_from_name(std::string_view name);  ///< throws ConfigError
[[nodiscard]] bool is_floating(DType dtype);  ///< floating or complex: may need a gradient

/// An integer that may depend on the number of rows of the batch: `fixed + per_row * rows`.
struct AffineInt {
  int64_t fixed = 0;
  int64_t per_row = 0;

  [[nodiscard]] constexpr int64_t at(int64_t rows) const { return fixed + per_row * rows; }
  [[nodiscard]] constexpr bool depends_on_rows() const { return per_row != 0; }
  friend constexpr bool operator==(const AffineInt&, const AffineInt&) = default;
};

/// How a value depends on the rows (samples) of the batch.
enum class RowKind {
  none,   ///< the same whatever the batch: parameters, constants, and what is computed from them
  apart,  ///< row b of the batch appears only in slice b of dimension `dim`
  mean,   ///< reduced over the rows so that row-weighted averages of parts give the whole
  sum,    ///< reduced over the rows so that sums of parts give the whole
  mixed,  ///< rows interact otherwise: correct only for the whole batch at once
};
[[nodiscard]] std::string_view name(RowKind kind);

/// Where the rows of a value lie. For `apart`, dimension `dim` has size outer * rows * inner, and
/// row b owns the indices (o * rows + b) * inner + i. Flattening (S, B) gives outer = S; flattening
/// (B, S) gives inner = S: the same size, another meaning.
struct Rows {
  RowKind kind = RowKind::none;
  int dim = 0;
  int64_t outer = 1;
  int64_t inner = 1;
  /// False when no rule knows the operator and the shapes alone suggest `apart`: only a
  /// self-check that replays row ranges apart can prove it.
  bool proved = true;

  friend bool operator==(const Rows&, const Rows&) = default;
};

}  // namespace rannc::ir
