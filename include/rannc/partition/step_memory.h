#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"
#include "rannc/plan/program.h"

namespace rannc::partition {

/// A tensor's memory that autograd keeps for the backward of `nodes`. The profile charges it to the
/// first of them; a stage that holds only later ones keeps it, too.
struct SavedStorage {
  std::vector<uint32_t> nodes;  ///< of the graph, ascending
  std::vector<double> bytes;    ///< at the profile's rows
};

/// The largest number of bytes that a rank of each stage holds within a training step. Section 6 of
/// docs/planner-files.md adds the peaks of all kinds; here they meet at the time when they occur,
/// as the Program goes along: gradients come into being while what was saved goes. [stage]
[[nodiscard]] std::vector<double> step_peak_bytes(const plan::Program& program,
                                                  const plan::Plan& plan, const ir::Graph& graph,
                                                  const cost::GraphProfile& profile,
                                                  const std::vector<SavedStorage>& saved,
                                                  double optimizer_bytes_per_param_byte);

}  // namespace rannc::partition
