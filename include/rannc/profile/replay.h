#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ops/objects.h"

namespace rannc::profile {

/// A tensor for each input, parameter, buffer and constant of `graph`, in value order: empty, at
/// `rows` rows, requiring a gradient where the value does. Under a FakeTensorMode they take no
/// memory.
struct Placeholders {
  std::vector<at::Tensor> tensors;
  std::vector<bool> is_input;  ///< the others are there whatever the batch
};
[[nodiscard]] Placeholders placeholders(const ir::Graph& graph, int64_t rows, c10::Device device);

using BeforeNode =
    std::function<void(uint32_t node, const std::vector<std::vector<int64_t>>& strides)>;

/// Runs all nodes of `graph` in order on `given` (as placeholders()), each in the grad mode of
/// the model and with autocast off, and calls `before_node` with a node's index and the strides of
/// its operands before it runs.
/// Every result lives to the end: meant for tensors without memory. The caller does not hold the
/// GIL.
void replay(const ir::Graph& graph, const ops::Objects& objects,
            const std::vector<at::Tensor>& given, int64_t rows, c10::Device device,
            const BeforeNode& before_node);

}  // namespace rannc::profile
