#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/call/rank_part.h"

namespace rannc::runtime {

/// Throws Error unless these are the tensors that a call on a local batch of `rows` rows takes; for
/// their meaning see Executor::forward().
void check_arguments(const RankPart& part, int64_t rows, const std::vector<at::Tensor>& inputs,
                     const std::vector<at::Tensor>& parameters,
                     const std::vector<at::Tensor>& buffers);

/// The same of the inputs alone.
void check_inputs(const RankPart& part, int64_t rows, const std::vector<at::Tensor>& inputs);

}  // namespace rannc::runtime
