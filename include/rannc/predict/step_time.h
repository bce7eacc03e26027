#pragma once

#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/plan/program.h"

namespace rannc::predict {

/// What one action of a rank took when the Program ran.
struct MeasuredAction {
  double work_ns = 0;  ///< of the computing thread
  /// Of a collective, after the last of its ranks has come; of a send, until its message is there,
  /// negative where only the link says so.
  double wait_ns = 0;
};

/// What a training step costs on a real host beyond section 5 of docs/planner-files.md.
struct StepCosts {
  double cores = 1;             ///< ranks of one host that can compute at the same time
  double action_ns = 0;         ///< around the operators of one forward or backward of a stage
  double message_ns = 0;        ///< of the computing thread, at each end of a message
  double copy_ns_per_byte = 0;  ///< packing gradients for their reduction, and back
  double accumulate_ns_per_byte = 0;      ///< adding a gradient to that of the micro-batch before
  std::vector<double> optimizer_ns = {};  ///< [profile param] of its optimizer step; empty: none
  /// [rank][action] of the Program; empty: what follows from the profile and the costs above.
  std::vector<std::vector<MeasuredAction>> measured = {};
  std::vector<double> around_ns = {};  ///< [rank] of a step, around its actions; empty: none
  /// Messages go in the Program's order, and each waits for both its ends, as with NCCL; otherwise
  /// they are buffered.
  bool in_order = false;
};

struct StepTime {
  double ns = 0;
  std::vector<double> idle_ns = {};  ///< [rank] of it: waits for other ranks
};

/// Time of a whole training step: the Program as the ranks run it, with each share's true rows, the
/// optimizer step, and the cores of a host shared fairly by the ranks that compute. Ranks agree on
/// every call, so a step begins on all of them when the last one has ended the step before.
///
/// Where the profile has times of the host, both clocks go: a device computes what its host has
/// issued, one after the other, and the host goes on meanwhile. It waits for messages that are
/// buffered, which leave when the device has come to them; in order it waits for none. What was
/// measured on a device has both in it.
[[nodiscard]] StepTime step_time(const plan::Program& program, const plan::Plan& plan,
                                 const ir::Graph& graph, const cost::GraphProfile& profile,
                                 const cost::Cluster& cluster, const StepCosts& costs);

}  // namespace rannc::predict
