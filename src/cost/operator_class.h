#pragma once

#include <string_view>

namespace rannc::cost {

/// What determines an operator's work.
enum class Work {
  pointwise,       ///< memory traffic of operands and results
  reduction,       ///< the same, by kernels that reach less of the bandwidth
  view,            ///< no kernel: results share an operand's storage, gradients that of the results
  part,            ///< a view whose backward writes a gradient for the whole operand
  gather,          ///< touches as many elements of its operands as it has results
  matmul,          ///< 2 * results * K, with K the last dimension of the left operand; the first of
                   ///< those that multiply matrices
  grouped_matmul,  ///< the same; integers that say which rows belong together come last
  linear,
  convolution,
  transposed_convolution,
  einsum,
  attention,
  recurrent,
};

/// Whether arithmetic decides, and not memory traffic alone.
[[nodiscard]] constexpr bool multiplies(Work work) { return work >= Work::matmul; }

/// What autograd keeps of an operator for its backward.
enum class Saves { nothing, operands, first_operand, integers, results, mask, all };

struct OperatorClass {
  Work work = Work::pointwise;
  Saves saves = Saves::operands;
  /// Memory traffic as a multiple of one pass: forward over operands and results, backward over
  /// gradients and saved tensors. More where intermediate results are written or statistics need a
  /// pass of their own.
  double forward_passes = 1;
  double backward_passes = 1;
};

/// By the table of operators (rannc/ir/operators.h). Those that are not there: pointwise, operands.
[[nodiscard]] OperatorClass operator_class(std::string_view op);

}  // namespace rannc::cost
