#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/cost/cost_table.h"
#include "rannc/ir/graph.h"
#include "rannc/ops/objects.h"
#include "rannc/profile/strides.h"

namespace rannc::profile {

/// Costs by key(): at each number of rows; `saved_bytes` is 0.
using KnownCosts = std::unordered_map<std::string, std::vector<cost::NodeCost>>;

struct MeasureOptions {
  std::vector<int64_t> rows;  ///< numbers of rows to time, strictly rising
  int repeats = 5;            ///< timed calls after one warm-up, more where they differ
  c10::Device device{c10::kCPU};
  int64_t cache_bytes = 0;  ///< of an accelerator's cache; 0: not known
  /// How the operands lie in memory at the first and at the last number of rows, from replay();
  /// empty: contiguous. A transposed operand costs more, and its reshape is a copy.
  std::vector<OperandStrides> strides = {};
  std::function<void(int done, int total)> progress;  ///< signatures timed; may be empty
  /// That share the signatures; empty: all. The others wait for what these have timed.
  std::vector<int> ranks = {};
};

/// Times every distinct operator signature of `graph` once, forward and backward, on random data of
/// the right shapes and strides, and with the cache as a training step leaves it. The ranks of
/// `comm` share the signatures and agree on one table (the same bits on all). Workspace is the peak
/// of temporaries seen by c10's memory reporting.
/// `saved[node][row index]` (see pyrannc/profiling/operators.py) is copied into the table.
/// An operator that cannot run on random data is charged as cost::ScaledEstimate says, and logged.
/// What is `known` (the same on all ranks) is not timed; what is timed becomes known, on all ranks.
[[nodiscard]] cost::CostTable measure(const ir::Graph& graph, const ops::Objects& objects,
                                      const std::vector<std::vector<int64_t>>& saved,
                                      comm::Communicator& comm, const MeasureOptions& options,
                                      KnownCosts& known);

/// For each node all that its costs depend on, besides the machine and the libraries; empty where
/// that cannot be said of another process: functions of the user's.
[[nodiscard]] std::vector<std::string> keys(const ir::Graph& graph, const MeasureOptions& options);

}  // namespace rannc::profile
