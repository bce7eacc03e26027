#pragma once

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// A valid plan without as many segments as fit without, from the last one of each stage on, whose
/// backward comes first. O(stages * log(segments)) evaluations.
[[nodiscard]] plan::Plan with_fewer_segments(const cost::GraphProfile& profile,
                                             const cost::Cluster& cluster, const Request& request,
                                             plan::Plan plan);

}  // namespace rannc::partition
