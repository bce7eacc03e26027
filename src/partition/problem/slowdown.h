#pragma once

#include <algorithm>

#include "partition/problem/draft.h"
#include "rannc/cost/cluster.h"

namespace rannc::partition {

/// How many times the graph's costs a stage takes on `ranks`: as its slowest rank does.
[[nodiscard]] inline double slowdown(const cost::Cluster& cluster, const Ranks& ranks) {
  if (cluster.speed_of_host.empty()) return 1;
  double slowest = cluster.fastest();
  for (const Segment& segment : ranks) {
    for (int rank = segment.first; rank < segment.first + segment.count; ++rank) {
      slowest = std::min(slowest, cluster.speed_of(cluster.host_of(rank)));
    }
  }
  return 1 / slowest;
}

}  // namespace rannc::partition
