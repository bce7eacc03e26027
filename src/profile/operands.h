#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::profile {

/// Leaf tensors for graph.operands(node) at `rows` rows, on which every operator should run:
/// floats between 0 and 1 (they suit logarithms, roots and probabilities), integers that are valid
/// indices, random booleans. They require a gradient where the graph's values do. The same value
/// twice is the same tensor twice. `strides`: one list per operand, or empty; contiguous where a
/// list is empty.
[[nodiscard]] std::vector<at::Tensor> random_operands(
    const ir::Graph& graph, ir::NodeId node, int64_t rows, c10::Device device,
    at::Generator generator, const std::vector<std::vector<int64_t>>& strides);

/// Gives the default random generators of the CPU and of `device` their state back at the end:
/// dropout draws from them while it is timed.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(c10::Device device);
  ~RandomStateGuard();
  RandomStateGuard(const RandomStateGuard&) = delete;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace rannc::profile
