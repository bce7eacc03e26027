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
  /// `cache_bytes`: of the device's cache; 0: it does not say.
  Bench(c10::Device device, int64_t step_bytes, int64_t cache_bytes);

  c10::Device device;
  Stopwatch stopwatch;
  std::optional<Train> train;  ///< of an accelerator
  Cache cache;
  int64_t rotated_bytes;  ///< that operands on an accelerator go round in, at least
  int64_t engine_ns = 0;  ///< of autograd for one call, however much there is to do
};

/// Times forward and backward of one node at `rows` rows on `operands` (leaves): one warm-up, which
/// also counts the memory, then `repeats` calls, up to four times as many where they differ much;
/// the lower quartile counts. A call that takes longer than 0.2 s is not repeated. `saved_bytes`
/// stays 0. Throws what the operator throws.
///
/// On an accelerator an operator costs what the device takes, and apart from it what the host takes
/// to give it the work; no call finds its operands in the device's cache, where that says how large
/// it is.
[[nodiscard]] cost::NodeCost time_node(const ir::Graph& graph, ir::NodeId node,
                                       const ops::Objects& objects,
                                       std::vector<at::Tensor> operands, int64_t rows, int repeats,
                                       Bench& bench);

}  // namespace rannc::profile
