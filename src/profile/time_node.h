#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "profile/cache.h"
#include "profile/stopwatch.h"
#include "rannc/cost/cost_table.h"
#include "rannc/profile/measure.h"

namespace rannc::profile {

/// What all measurements of a graph share.
struct Bench {
  Bench(c10::Device device, int64_t step_bytes);

  c10::Device device;
  Stopwatch stopwatch;
  std::optional<Train> train;  ///< of an accelerator
  Cache cache;
  int64_t engine_ns = 0;  ///< of autograd for one call, however much there is to do
};

/// Times forward and backward of one node at `rows` rows on `operands` (leaves): one warm-up, which
/// also counts the memory, then `repeats` calls, up to four times as many where they differ much;
/// the lower quartile counts. A call that takes longer than 0.2 s is not repeated. `saved_bytes`
/// stays 0. Throws what the operator throws.
///
/// On an accelerator an operator costs what the device takes, and apart from it what the host takes
/// to give it the work; the operands are others than those of the call before, as far as they
/// fit into the device's cache.
[[nodiscard]] cost::NodeCost time_node(const ir::Graph& graph, ir::NodeId node,
                                       const ops::Objects& objects,
                                       std::vector<at::Tensor> operands, int64_t rows, int repeats,
                                       Bench& bench);

}  // namespace rannc::profile
