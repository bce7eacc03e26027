#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/partition/planner.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// What a request leaves open, with its defaults filled in.
struct SearchSpace {
  std::vector<int64_t> micro_batches;     ///< ascending, each at most the global batch
  std::vector<plan::Schedule> schedules;  ///< without repetition, in the request's order
  int stages = 0;                         ///< forced number of stages, 0: any
  std::vector<int> replicas;              ///< forced, one per stage; empty: any
  bool one_replica = false;
};

/// Throws ConfigError, with the numbers and what to try, when nothing is left: interleaved stages
/// (this planner does not search them), more ranks than the cluster has, shares without a row.
[[nodiscard]] SearchSpace search_space(const Request& request, const cost::Cluster& cluster,
                                       const PlannerOptions& options);

/// Throws ConfigError when `space` asks for more stages than there are blocks.
void check_stage_count(const SearchSpace& space, size_t blocks);

}  // namespace rannc::partition
