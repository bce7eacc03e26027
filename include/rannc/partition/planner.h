#pragma once

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/options.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// The whole planner: atomic pieces -> blocks -> stages, for every allowed micro-batch count and
/// schedule; the candidate with the smallest iteration_ns of evaluate() wins. Deterministic.
/// Throws ConfigError for a request that cannot be; returns a plan with feasible = false and a
/// reason (largest block, needed against available bytes by kind, what to change) when none fits.
[[nodiscard]] plan::Plan make_plan(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                   const Request& request, const PlannerOptions& options = {});

}  // namespace rannc::partition
