#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/cost/cost_table.h"
#include "rannc/ir/graph.h"
#include "rannc/ops/objects.h"
#include "rannc/profile/strides.h"

namespace rannc::profile {

struct MeasureOptions {
  std::vector<int64_t> rows;  ///< numbers of rows to time, strictly rising
  int repeats = 5;            ///< timed calls after one warm-up; the median counts
  c10::Device device{c10::kCPU};
  /// How the operands lie in memory at the first and at the last number of rows, from replay();
  /// empty: contiguous. A transposed operand costs more, and its reshape is a copy.
  std::vector<OperandStrides> strides = {};
  std::function<void(int done, int total)> progress;  ///< signatures timed; may be empty
};

/// Times every distinct operator signature of `graph` once, forward and backward, on random data of
/// the right shapes and strides, and with the cache as a training step leaves it. The ranks of
/// `comm` share the signatures and agree on one table (the same bits on all). Workspace is the peak
/// of temporaries seen by c10's memory reporting.
/// `saved[node][row index]` (see pyrannc/profile.py) is copied into the table.
/// An operator that cannot run on random data is charged by the CPU device model, and logged.
[[nodiscard]] cost::CostTable measure(const ir::Graph& graph, const ops::Objects& objects,
                                      const std::vector<std::vector<int64_t>>& saved,
                                      comm::Communicator& comm, const MeasureOptions& options);

}  // namespace rannc::profile
