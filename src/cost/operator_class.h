#pragma once

#include <string_view>

namespace rannc::cost {

/// What determines an operator's work.
enum class Work {
  bytes,   ///< memory traffic of operands and results
  view,    ///< no kernel: results share an operand's storage
  gather,  ///< touches as many elements of its operands as it has results
  matmul,  ///< 2 * results * K, with K the last dimension of the left operand
  linear,
  convolution,
  transposed_convolution,
  einsum,
  attention,
  recurrent,
};

/// What autograd keeps of an operator for its backward.
enum class Saves { nothing, operands, first_operand, integers, results, mask, all };

struct OperatorClass {
  Work work = Work::bytes;
  Saves saves = Saves::operands;
};

/// "aten::add_.Tensor" and "aten::add" are one class. Operators without an entry: bytes, operands.
[[nodiscard]] OperatorClass operator_class(std::string_view op);

}  // namespace rannc::cost
