#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"
#include "rannc/cost/saved_storage.h"
#include "rannc/plan/buckets.h"
#include "rannc/plan/program.h"

namespace rannc::predict {

struct OptimizerMemory {
  double state_factor = 0;  ///< copies of a parameter whose profile does not give the bytes
  /// [profile param]: what a step of the optimizer needs beside its state, for a while. The largest
  /// of these counts, as one parameter follows the other.
  std::vector<double> largest_bytes = {};
  std::vector<double> all_bytes = {};  ///< [profile param] and this for all of them together
};

/// The largest number of bytes that a rank of each stage holds within a training step. Section 6 of
/// docs/planner-files.md adds the peaks of all kinds; here they meet at the time when they occur,
/// as the Program goes along: gradients come into being while what was saved goes. [stage]
/// `bucket_bytes`: of the arrays in which gradients are summed.
[[nodiscard]] std::vector<double> step_peak_bytes(const plan::Program& program,
                                                  const plan::Plan& plan, const ir::Graph& graph,
                                                  const cost::GraphProfile& profile,
                                                  const std::vector<cost::SavedStorage>& saved,
                                                  const OptimizerMemory& optimizer,
                                                  int64_t bucket_bytes = plan::kBucketBytes);

}  // namespace rannc::predict
