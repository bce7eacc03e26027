#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/options.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// How a plan is laid out, whatever its stages compute.
struct Arrangement {
  std::vector<int> replicas;  ///< of each stage
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  int interleave = 1;
  friend bool operator==(const Arrangement&, const Arrangement&) = default;
};
[[nodiscard]] Arrangement arrangement_of(const plan::Plan& plan);

/// A plan of another kind that a search has looked at, the best of its kind.
struct RunnerUp {
  Arrangement arrangement;
  int64_t iteration_ns = 0;
  int64_t peak_bytes = 0;  ///< of the fullest rank; it may be more than there is
};

/// A plan, and what else the search for it has looked at: the fastest that fits first, then those
/// that do not fit. Its notes tell people the same.
struct Found {
  plan::Plan plan;
  std::vector<RunnerUp> runners_up;
};

/// The whole planner: atomic pieces -> blocks -> stages, for every allowed micro-batch count and
/// schedule; the candidate with the smallest iteration_ns of evaluate() wins. Deterministic.
/// Throws ConfigError for a request that cannot be; returns a plan with feasible = false and a
/// reason (largest block, needed against available bytes by kind, what to change) when none fits.
[[nodiscard]] Found find_plan(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                              const Request& request, const PlannerOptions& options = {});

/// The plan alone.
[[nodiscard]] plan::Plan make_plan(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                   const Request& request, const PlannerOptions& options = {});

}  // namespace rannc::partition
