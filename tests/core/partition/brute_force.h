#pragma once

#include <cstdint>
#include <vector>

#include "partition/brute/judge.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition::testing {

/// The best plan of the whole space that a request allows.
struct Optimum {
  bool feasible = false;
  double iteration_ns = 0;
  plan::Plan plan;
  int64_t candidates = 0;  ///< that fit in memory; ranks not yet placed
  int64_t simulated = 0;   ///< with ranks placed; the bounds excluded the others
};

/// Every sequence of sets of nodes, one per stage, in which no value goes back and groups are
/// whole.
[[nodiscard]] std::vector<std::vector<brute::Mask>> all_cuts(const brute::Tables& tables,
                                                             size_t most_stages);
/// Their number, counted up to `limit`.
[[nodiscard]] int64_t count_cuts(const brute::Tables& tables, int64_t limit);

/// Tries every convex cut in every order, all replica counts, all ways to put the replicas on hosts
/// (a stage's ranks ascend), micro-batch counts, schedules and recompute choices that the request
/// allows. Exact: it leaves out only what a lower bound excludes. Up to 9 nodes, 8 ranks, 2 hosts.
[[nodiscard]] Optimum brute_force(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                  const Request& request);

}  // namespace rannc::partition::testing
