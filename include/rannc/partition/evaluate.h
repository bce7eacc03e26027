#pragma once

#include <string>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// Time and memory of a plan by sections 5 and 6 of docs/planner-files.md, in doubles, not rounded.
struct StageEvaluation {
  double rows = 0;
  double forward_ns = 0, backward_ns = 0, reduce_ns = 0;
  double param_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, activation_bytes = 0;
  double buffer_bytes = 0, workspace_bytes = 0, peak_bytes = 0;
};
struct Evaluation {
  std::vector<std::string> problems;  ///< empty: the plan is valid and fits
  double iteration_ns = 0;
  std::vector<StageEvaluation> stages;
};

/// Shares no code with the search. Accepts plans written by hand; what is wrong with one is in
/// `problems`, by name and number. Time and memory are given whenever the structure allows it.
[[nodiscard]] Evaluation evaluate(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                  const Request& request, const plan::Plan& plan);

}  // namespace rannc::partition
