#pragma once

#include <ATen/core/Generator.h>

#include "rannc/cost/cost_table.h"
#include "rannc/profile/measure.h"

namespace rannc::profile {

/// Times forward and backward of one node on random data at `rows` rows: one warm-up, which also
/// counts the memory, then `options.repeats` calls, of which the median counts. A call that takes
/// longer than 0.2 s is not repeated. `saved_bytes` stays 0. Throws what the operator throws.
[[nodiscard]] cost::NodeCost time_node(const ir::Graph& graph, ir::NodeId node,
                                       const ops::Objects& objects, int64_t rows,
                                       const MeasureOptions& options, at::Generator generator);

}  // namespace rannc::profile
