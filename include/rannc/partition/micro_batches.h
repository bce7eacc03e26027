#pragma once

#include <cstdint>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// `plan`, an answer of make_plan() to the same arguments, with `count` micro-batches: its stages,
/// ranks, schedule and recompute stay, what is predicted and noted is that of the changed plan. By
/// evaluate() alone. Not feasible, with the first problem as its reason, when the request, the
/// schedule or the memory forbids that count.
[[nodiscard]] plan::Plan with_micro_batches(const cost::GraphProfile& profile,
                                            const cost::Cluster& cluster, const Request& request,
                                            plan::Plan plan, int64_t count);

}  // namespace rannc::partition
