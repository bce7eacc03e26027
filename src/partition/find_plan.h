#pragma once

#include "partition/problem/heuristics.h"
#include "rannc/partition/planner.h"

namespace rannc::partition {

/// The planner with parts of its search left out, for benchmarks.
[[nodiscard]] Found find_plan(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                              const Request& request, const PlannerOptions& options,
                              const Heuristics& with);

}  // namespace rannc::partition
