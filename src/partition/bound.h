#pragma once

#include "partition/block_costs.h"
#include "partition/space.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// No plan of this request is faster, whatever its cuts, ranks and transfers. For each micro-batch
/// count the larger of: the work of all nodes, each at the row count where it takes least time of
/// ranks, shared by all ranks; and for each node the way of one micro-batch through it (the longest
/// path of the graph, at the smallest shares) with its own work for all the other micro-batches.
/// The smallest over the counts. `costs` has one block per node. O((V + E) * micro-batch counts).
[[nodiscard]] double lower_bound_ns(const cost::GraphProfile& profile, const BlockCosts& costs,
                                    const cost::Cluster& cluster, const Request& request,
                                    const SearchSpace& space);

}  // namespace rannc::partition
