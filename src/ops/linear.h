#pragma once

#include <ATen/core/stack.h>

namespace rannc::ops {

/// aten::linear with one autograd node in place of torch's four (reshape, transpose, product,
/// reshape), by the same kernels: the same bits; a step of a tiny model takes 5 % less. From the
/// second micro-batch on its backward adds to the sum of the weight's gradients (sum_at()), in less
/// time (benchmarks/runtime/weight_gradients.py) and without memory for a gradient beside it.
/// For dense floating operands; false, and the stack untouched, where torch's own is to be called:
/// other operands, or nothing to differentiate.
[[nodiscard]] bool call_linear(torch::jit::Stack& stack);

}  // namespace rannc::ops
