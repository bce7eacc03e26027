#pragma once

#include <cstdint>
#include <vector>

#include "partition/atomic.h"
#include "partition/best.h"
#include "partition/space.h"
#include "partition/stop.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// A plan with its stages as sets of nodes.
struct NodePlan {
  Scored scored;                             ///< `stage_of` is of other blocks
  std::vector<std::vector<uint32_t>> nodes;  ///< [stage] ascending
};

/// The nodes of the stages of a draft over `blocks`.
[[nodiscard]] NodePlan to_node_plan(const Scored& scored,
                                    const std::vector<std::vector<uint32_t>>& blocks);

/// Refines the borders between stages piece by piece: blocks are left behind, and only the pieces
/// near a border are kept apart, the rest of a stage being one block. Repeated around the new
/// borders while that helps. O(rounds * (V + E)) and the trials of refine().
[[nodiscard]] NodePlan zoom(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                            const Request& request, const SearchSpace& space,
                            const std::vector<Piece>& pieces, NodePlan plan, Stop& stop,
                            int64_t& examined);

}  // namespace rannc::partition
