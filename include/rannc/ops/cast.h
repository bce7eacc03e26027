#pragma once

#include <ATen/core/Tensor.h>

namespace rannc::ops {

/// Makes `result`, a cast of `source` that autograd has not recorded, one that passes may share:
/// the backward of each adds its gradient to that of `source`, as soon as it has it.
///
/// Args:
///   only_use: Nothing else in a pass reads `source`. Then a gradient is added straight to the sum
///     of the ones before, in the dtype of `source`; else it is first added to the pass's others.
void record_shared_cast(const at::Tensor& source, at::Tensor& result, bool only_use);

}  // namespace rannc::ops
