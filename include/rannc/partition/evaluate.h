#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// Time and memory of a plan by sections 5 and 6 of docs/planner-files.md (for a profile of version
/// 2, by section 7), in doubles, not rounded.
struct StageEvaluation {
  double rows = 0;
  double forward_ns = 0, backward_ns = 0, reduce_ns = 0;
  double param_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, activation_bytes = 0;
  double buffer_bytes = 0, workspace_bytes = 0, peak_bytes = 0;
  /// Of one micro-batch, at `rows`: values of other stages, graph inputs, and its own values that
  /// other stages use, each once.
  double in_bytes = 0, graph_input_bytes = 0, out_bytes = 0;
};

/// All values that go from one stage to a later one, together, for one micro-batch.
struct TransferEvaluation {
  size_t from = 0;
  size_t to = 0;
  double bytes = 0;  ///< forward, of all replicas
  double forward_ns = 0;
  double backward_ns = 0;
  bool grad = false;  ///< some value has a gradient, which goes back
};

struct Evaluation {
  std::vector<std::string> problems;  ///< empty: the plan is valid and fits
  double iteration_ns = 0;
  double iteration_price = 0;  ///< of the ranks that the plan uses
  std::vector<StageEvaluation> stages;
  std::vector<TransferEvaluation> transfers;  ///< by (from, to)
};

/// Shares no code with the search. Accepts plans written by hand; what is wrong with one is in
/// `problems`, by name and number. Time and memory are given whenever the structure allows it.
[[nodiscard]] Evaluation evaluate(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                  const Request& request, const plan::Plan& plan);

/// `plan` with what its file says beyond its choices: the predictions of `evaluation`, which is of
/// it, and notes about them. What the search noted stays and is told of the plan as it is now. What
/// was predicted of a step is of another plan, and goes.
[[nodiscard]] plan::Plan described(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                   const Request& request, plan::Plan plan,
                                   const Evaluation& evaluation);

}  // namespace rannc::partition
