#pragma once

#include <string>
#include <vector>

#include "partition/search.h"
#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

/// The arrangement whose fullest stage comes closest to fitting, over all allowed numbers of
/// micro-batches and schedules, by the recurrence of solve_stages() with the largest peak as the
/// objective. Ties: fewer stages, then fewer micro-batches.
[[nodiscard]] Arrangement closest_arrangement(const RangeCosts& ranges,
                                              const cost::Cluster& cluster, const Request& request,
                                              const SearchSpace& space);

/// Why nothing fits: the fullest stage of the closest arrangement, its bytes by kind against what a
/// device offers, and what to change. `blocks` are the node numbers of each block.
[[nodiscard]] std::string explain_shortfall(const cost::GraphProfile& profile,
                                            const std::vector<std::vector<uint32_t>>& blocks,
                                            const RangeCosts& ranges, const cost::Cluster& cluster,
                                            const Request& request, const SearchSpace& space);

}  // namespace rannc::partition
