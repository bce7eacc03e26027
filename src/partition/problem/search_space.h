#pragma once

#include <cstdint>
#include <vector>

#include "partition/problem/draft.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
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
  int fewest_stages = 1;  ///< what memory demands at least, for parameters and their state
  int fewest_chunks = 2, most_chunks = 1;  ///< stages of an interleaved group; none: fewest > most
  /// [block] the stage that a pin demands, kLastStage, or kFree; empty: no pins.
  std::vector<int> pins;
  std::vector<int> pin_of_node;  ///< the same for [node]
  static constexpr int kLastStage = -1, kFree = -2;

  [[nodiscard]] bool interleaves() const { return fewest_chunks <= most_chunks; }
};

[[nodiscard]] bool respects_pins(const SearchSpace& space, const Draft& draft);

/// Throws ConfigError, with the numbers and what to try, when nothing is left: more ranks than the
/// cluster has, shares without a row.
[[nodiscard]] SearchSpace search_space(const Request& request, const cost::Cluster& cluster,
                                       const PlannerOptions& options);

/// Parameters, gradients and optimizer state over the memory of a device; at most a million.
[[nodiscard]] int fewest_stages(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                const Request& request);

/// Whether forced replicas are those of `groups` groups, again and again.
[[nodiscard]] bool replicas_repeat(const SearchSpace& space, int groups);

/// Throws ConfigError when `space` asks for more stages than there are blocks.
void check_stage_count(const SearchSpace& space, size_t blocks);

}  // namespace rannc::partition
