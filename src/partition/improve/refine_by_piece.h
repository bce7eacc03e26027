#pragma once

#include <cstdint>
#include <vector>

#include "partition/blocks/pieces.h"
#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/score/node_plan.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// Refines the borders between stages piece by piece: blocks are left behind, and only the pieces
/// near a border are kept apart, the rest of a stage being one block. Repeated around the new
/// borders while that helps. O(rounds * (V + E)) and the trials of refine().
[[nodiscard]] NodePlan zoom(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                            const Request& request, const SearchSpace& space,
                            const std::vector<Piece>& pieces, NodePlan plan, Stop& stop,
                            int64_t& examined);

}  // namespace rannc::partition
