#pragma once

#include "partition/problem/search_report.h"
#include "rannc/partition/evaluate.h"

namespace rannc::partition {

/// Where the time of `plan` goes, by the simulation of evaluate() with and without transfers.
/// Requires a plan whose structure is sound: evaluate() gave it a time, `iteration_ns`.
[[nodiscard]] TimeParts time_parts(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                   const Request& request, const plan::Plan& plan,
                                   double iteration_ns);

}  // namespace rannc::partition
