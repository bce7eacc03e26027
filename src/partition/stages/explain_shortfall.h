#pragma once

#include <string>
#include <vector>

#include "partition/problem/search_space.h"
#include "partition/stages/range_costs.h"
#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

/// Why nothing fits: what needs too much, its bytes by kind against what a device offers, and what
/// to change. That is the largest block, if it does not fit even alone with one micro-batch in
/// flight; otherwise the fullest stage of the arrangement that comes closest to fitting, found by
/// the recurrence of solve_stages() with the largest peak as the objective. `blocks` are the node
/// numbers of each block.
[[nodiscard]] std::string explain_shortfall(const cost::GraphProfile& profile,
                                            const std::vector<std::vector<uint32_t>>& blocks,
                                            const RangeCosts& ranges, const cost::Cluster& cluster,
                                            const Request& request, const SearchSpace& space);

}  // namespace rannc::partition
