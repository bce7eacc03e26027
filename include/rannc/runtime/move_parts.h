#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "rannc/comm/communicator.h"
#include "rannc/plan/layout.h"

namespace rannc::runtime {

/// One tensor whose numbers go from the ranks that hold them to those that want them.
struct MovedTensor {
  plan::Layout from;
  plan::Layout to;
  at::Tensor held;    ///< this rank's part under `from`, flat, on the host; undefined: none
  at::Tensor wanted;  ///< memory for its part under `to`, the same way
};

/// Fills `wanted` on every rank; between two ranks goes one message for all tensors. Each of
/// `ranks` (ascending, this one among them) calls it, with the same tensors in the same order but
/// for those of which it neither holds nor wants anything.
///
/// Throws PlanError where no rank holds numbers that one wants, and Error where a flat tensor is
/// not as long as its part, or of another dtype than the one beside it.
void move_parts(comm::Communicator& comm, std::span<const MovedTensor> tensors,
                std::span<const int> ranks, comm::Purpose purpose);

}  // namespace rannc::runtime
