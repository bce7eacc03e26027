#pragma once

#include "partition/blocks/block_costs.h"
#include "partition/problem/search_space.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// No plan of this request is faster, whatever its cuts, ranks and transfers. For each micro-batch
/// count m, the largest of:
///  - the work of all nodes, each at the row count where it takes least time of ranks, shared by
///  all
///    ranks;
///  - for each node, the way of one micro-batch through it (the longest path of the graph, at the
///    smallest shares) and its own work for all the other micro-batches;
///  - the ramp: when the s-th stage along a path starts, the path's nodes in front of it have
///  passed
///    once, so in time T it does at most (T / m) (1 - 1/m)^s of the path per micro-batch; with r
///    replicas at most (no replica without a row) and R ranks, the path's work in ranks' time is at
///    most T r (1 - (1 - 1/m)^(R/r)). Taken for the path with most work; not for interleaved
///    stages, which shorten the ramp.
/// The smallest over the counts. `costs` has one block per node. O((V + E) * micro-batch counts).
[[nodiscard]] double lower_bound_ns(const cost::GraphProfile& profile, const BlockCosts& costs,
                                    const cost::Cluster& cluster, const Request& request,
                                    const SearchSpace& space);

}  // namespace rannc::partition
