#pragma once

#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/cost_table.h"
#include "rannc/cost/saved_storage.h"
#include "rannc/ir/shard.h"

namespace rannc::cost {

/// Costs of the nodes of a whole graph where ranks compute each of its layers together: each node
/// costs what one place computes of it, and what it sends for that.
struct GroupCosts {
  CostTable table;
  std::vector<SavedStorage> saved;
};
/// From those of the graph of one place, `table` and `saved`, in which collectives cost nothing.
/// `link`: between the `ways` ranks of a group.
[[nodiscard]] GroupCosts of_whole_nodes(const ir::Graph& whole, const ir::ShardedGraph& sharded,
                                        CostTable table, const std::vector<SavedStorage>& saved,
                                        int ways, const Link& link);

/// Of what a rank sends one message after the other.
[[nodiscard]] double time_ns(const ir::Traffic& traffic, const Link& link);

/// Each group of `ways` ranks as a device: their memory is that of one of them, as each holds its
/// part, and between hosts they share the card. `link` becomes that between the ranks of a group.
/// Throws ConfigError where groups do not divide the ranks.
[[nodiscard]] Cluster of_groups(const Cluster& cluster, int ways, Link* link);

}  // namespace rannc::cost
