#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace rannc::runtime {

/// Of gradients that are joined: they are all held until the end of a backward, beside their sums.
inline constexpr int64_t kMostJoinedBytes = int64_t{1} << 20;

/// Lets one node of autograd add up the gradients of several tensors, each in its `.grad`, instead
/// of a node for each: torch's engine takes about 2 us for a node, more than small sums need.
///
/// Args:
///   tensors: Where the node finds them; to stay there as long as what is computed from them.
///   joined: Indices of those to be joined, without a history so far.
void join_gradients(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& joined);

}  // namespace rannc::runtime
