#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/planner.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

// Plans beside an answer of make_plan() that may be faster when they run.
namespace rannc::partition {

/// `plan`, an answer of make_plan() to the same arguments, with `count` micro-batches: its stages,
/// ranks, schedule and recompute stay, what is predicted and noted is that of the changed plan. By
/// evaluate() alone. Not feasible, with the first problem as its reason, when the request, the
/// schedule or the memory forbids that count.
[[nodiscard]] plan::Plan with_micro_batches(const cost::GraphProfile& profile,
                                            const cost::Cluster& cluster, const Request& request,
                                            plan::Plan plan, int64_t count);

/// The best plan of that arrangement; find_plan() with it forced. Runners-up and notes of the
/// search are those of `found`, the answer to the same arguments without the arrangement, which
/// becomes one of them. Not feasible when no plan of that arrangement fits.
[[nodiscard]] Found plan_of_arrangement(const cost::GraphProfile& profile,
                                        const cost::Cluster& cluster, const Request& request,
                                        const PlannerOptions& options, const Found& found,
                                        const Arrangement& arrangement);

}  // namespace rannc::partition
