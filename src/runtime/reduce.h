#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::runtime {

/// Sums `.grad` of `parameters` over `ranks`. One without a gradient counts as zero, and keeps none
/// when it has none on any rank. Every rank passes the same parameters in the same order, and the
/// number of the call that they belong to: throws CommError when the numbers differ.
void sum_gradients(const std::vector<at::Tensor>& parameters, int64_t call,
                   comm::Communicator& comm, std::span<const int> ranks);

/// Sums tensors over all ranks, as one message of float64 numbers; keeps shapes and dtypes. `what`
/// names it in errors.
void sum_scalars(std::vector<at::Tensor>& sums, comm::Communicator& comm, const char* what);

}  // namespace rannc::runtime
