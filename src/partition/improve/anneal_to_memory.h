#pragma once

#include <vector>

#include "partition/blocks/pieces.h"
#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/score/node_plan.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// The fastest plan that needs no more than `space.room` says, among those that differ from `plan`
/// in the borders between stages only; `plan` itself where none was found, or where one step's
/// account takes too long to ask for many. By simulated annealing
/// (Kirkpatrick et al., Science 1983): time and memory are at odds, and most ways from one good
/// plan to the next lead through worse ones. Deterministic.
[[nodiscard]] NodePlan squeeze(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                               const Request& request, const SearchSpace& space,
                               const std::vector<Piece>& pieces, const NodePlan& plan, Stop& stop);

}  // namespace rannc::partition
