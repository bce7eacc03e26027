#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "rannc/comm/communicator.h"

namespace rannc::runtime {

/// What ranks do with a flat tensor that each of them has: see comm::Communicator::start_sum(),
/// start_reduce_scatter() and start_all_gather().
enum class Collective { sum, reduce_scatter, all_gather };

/// Starts it in place, after what `stream` was given so far. A plain tensor, which is kept until it
/// is done; the result is there for what `stream` is given after it has waited for the operation.
/// Every one of `ranks` calls it with as many elements of one dtype; shards are equal. Throws Error
/// for a dtype that ranks cannot share.
[[nodiscard]] comm::Handle start(Collective kind, const at::Tensor& tensor,
                                 comm::Communicator& comm, comm::Stream& stream,
                                 std::span<const int> ranks, comm::Purpose purpose);

/// comm::Communicator::connect() with memory of `device`, where messages have an order.
void connect(const comm::Traffic& traffic, comm::Communicator& comm, comm::Stream& stream,
             c10::Device device);

}  // namespace rannc::runtime
