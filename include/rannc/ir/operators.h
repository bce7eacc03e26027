#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace rannc::ir {

/// Operators to whose results rows come by one rule, which has the same name
/// (src/ir/rows/rules/families.h).
enum class OperatorFamily : uint8_t {
  none,  ///< no rule
  // Each element from those in the same place.
  pointwise,
  identity,
  add,
  multiply,
  divide,
  where,
  dropout,
  copy,
  fill,
  // Tensors of numbers.
  create,
  create_like,
  full,
  counting,
  // The same elements in other places.
  reshape,
  permute,
  transpose,
  movedim,
  broadcast_tensors,
  expand,
  select,
  slice,
  narrow,
  split,
  unbind,
  diagonal,
  cat,
  stack,
  repeat,
  repeat_interleave,
  // Along dimensions.
  sum,
  mean,
  reduce,
  histogram,
  extremum,
  similarity,
  along_dimension,
  fourier,
  triangle,
  // Sums of products.
  matmul,
  addmm,
  linear,
  einsum,
  bilinear,
  outer,
  cdist,
  attention,
  convolution,
  // Layers and losses.
  spatial,
  pad,
  batch_norm,
  layer_norm,
  rows_first,
  embedding,
  embedding_bag,
  recurrent,
  one_hot,
  pointwise_loss,
  class_loss,
  sample_loss,
  ctc_loss,
  // Places that tensors say.
  index,
  index_put,
  index_select,
  index_write,
  gather,
};

/// What an operator does and keeps for its backward; src/cost/operator_class.cpp says of each what
/// it costs.
enum class WorkClass : uint8_t {
  plain,  ///< by element, keeps operands; of operators that are not in the table, too
  keeps_nothing,
  keeps_results,
  keeps_first,  ///< the first operand
  keeps_integers,
  keeps_mask,
  whole_view,
  part_view,  ///< its backward writes a gradient for the whole operand
  gathers,
  sums,
  pools,
  orders,
  losses,
  softmax,
  layer_norm,
  batch_norm,
  cross_entropy,
  matrix,
  grouped_matrix,
  linear,
  convolution,
  transposed_convolution,
  einsum,
  attention,
  recurrent,
};

/// What kind an operator is; one may be of several.
enum class Trait : uint32_t {
  none = 0,
  // Of all operators of a family.
  pointwise = 1U << 0,  ///< each element of a result from those in the same place of operands
  view = 1U << 1,       ///< the elements of its operand in other dimensions
  reduction = 1U << 2,  ///< results lack dimensions of the operand, or have size 1 there
  along = 1U << 3,      ///< along dimensions, which results have, too
  product = 1U << 4,    ///< sums of products
  factory = 1U << 5,    ///< of numbers and sizes alone; what elements of operands are is no matter
  scales = 1U << 6,     ///< its second operand multiplies or divides the first
  loss = 1U << 7,       ///< of each element, and then summed as its `reduction` says
  // Of single ones.
  draws = 1U << 8,    ///< random numbers, with some arguments
  unset = 1U << 9,    ///< gives what its memory held before
  like = 1U << 10,    ///< of the first operand only sizes, dtype and device count
  passes = 1U << 11,  ///< gives its real operand's elements, perhaps as another type or elsewhere
  /// Normalises; where its argument `training` or `use_input_stats` is true, by the statistics of
  /// what it is given, and it writes `running_mean` and `running_var`, whatever its schema says.
  statistics = 1U << 12,
  /// Of numbers that the code says it gives a number that Python may read in a capture.
  known = 1U << 13,
  mask = 1U << 14,  ///< two masks that it makes of the same select the same
  selected =
      1U << 15,  ///< may go on with what a mask leaves out: finite there, as its derivative is
  checked = 1U << 16,  ///< what a check of the model's asks of its tensors, of any sizes
  /// On released tensors: each rank that holds them does it with its own.
  released = 1U << 17,
};
constexpr Trait operator|(Trait a, Trait b) {
  return static_cast<Trait>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool has(Trait all, Trait one) {
  return (static_cast<uint32_t>(all) & static_cast<uint32_t>(one)) != 0;
}

/// A line of the table of torch's operators.
struct Operator {
  std::string_view name;  ///< as base_name() gives it
  OperatorFamily family = OperatorFamily::none;
  WorkClass work = WorkClass::plain;
  Trait traits = Trait::none;
  std::string_view other_name_of = {};  ///< "mul" for "multiply"; "" for most
};

/// "add" for "aten::add_.Tensor": all overloads, in place or not, are one operator.
[[nodiscard]] std::string_view base_name(std::string_view op);

/// The table, by src/ir/operators.
[[nodiscard]] const std::vector<Operator>& all_operators();

/// That of the table with this name; one that has nothing where there is none.
[[nodiscard]] const Operator& find_operator(std::string_view base);

}  // namespace rannc::ir
