#include "rannc/cost/group_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

/// What a collective keeps beside its result: all parts, before they are put together.
int64_t workspace(const ir::Graph& graph, ir::NodeId node, int64_t rows) {
  if (graph[node].op == "group::sum" || graph[node].op == "group::sum_gradient") return 0;
  const auto operand = std::get<ir::ValueId>(graph[node].inputs.front());
  return std::max(graph[operand].bytes(rows), graph[graph[node].outputs.front()].bytes(rows));
}

void add(NodeCost& sum, const NodeCost& cost) {
  sum.forward_ns += cost.forward_ns;
  sum.backward_ns += cost.backward_ns;
  sum.saved_bytes += cost.saved_bytes;
  sum.workspace_bytes = std::max(sum.workspace_bytes, cost.workspace_bytes);
  sum.forward_host_ns += cost.forward_host_ns;
  sum.backward_host_ns += cost.backward_host_ns;
}

}  // namespace

double time_ns(const ir::Traffic& traffic, const Link& link) {
  return static_cast<double>(traffic.messages) * link.latency_ns +
         static_cast<double>(traffic.bytes) / link.bandwidth_bytes_per_s * 1e9;
}

GroupCosts of_whole_nodes(const ir::Graph& whole, const ir::ShardedGraph& sharded, CostTable table,
                          const std::vector<SavedStorage>& saved, int ways, const Link& link) {
  const ir::Graph& graph = sharded.graph;
  RANNC_CHECK(
      table.node.size() == graph.nodes.size() && sharded.origins.size() == graph.nodes.size(),
      "costs of another graph");
  GroupCosts made;
  made.table.rows = table.rows;
  made.table.node.assign(whole.nodes.size(), std::vector<NodeCost>(table.rows.size()));
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const ir::NodeId origin = sharded.origins[index];
    if (!origin.valid()) continue;
    for (size_t i = 0; i < table.rows.size(); ++i) {
      NodeCost& cost = table.node[index][i];
      const int64_t rows = table.rows[i];
      const auto [forward, backward] = ir::traffic_of(graph, {index}, ways, rows);
      cost.forward_ns += std::llround(time_ns(forward, link));
      cost.backward_ns += std::llround(time_ns(backward, link));
      if (ir::is_collective(graph.nodes[index])) {
        cost.workspace_bytes = workspace(graph, {index}, rows);
      }
      add(made.table.node[origin.index][i], cost);
    }
  }
  for (const SavedStorage& storage : saved) {
    std::set<uint32_t> nodes;
    for (const uint32_t node : storage.nodes) {
      const ir::NodeId origin = sharded.origins.at(node);
      if (origin.valid()) nodes.insert(origin.index);
    }
    if (!nodes.empty()) made.saved.push_back({{nodes.begin(), nodes.end()}, storage.bytes});
  }
  return made;
}

Cluster of_groups(const Cluster& cluster, int ways, Link* link) {
  if (cluster.ranks() % ways != 0) {
    throw ConfigError(
        fmt::format("groups of {} ranks do not divide {} ranks", ways, cluster.ranks()));
  }
  Cluster groups = cluster;
  bool on_one_host = true;
  std::vector<int> hosts;
  std::vector<double> speeds(static_cast<size_t>(cluster.ranks() / ways), cluster.fastest());
  for (int rank = 0; rank < cluster.ranks(); ++rank) {
    if (rank % ways == 0) hosts.push_back(cluster.host_of(rank));
    on_one_host = on_one_host && cluster.host_of(rank) == hosts.back();
    double& slowest = speeds[static_cast<size_t>(rank / ways)];
    slowest = std::min(slowest, cluster.speed_of(cluster.host_of(rank)));
  }
  *link = on_one_host ? cluster.intra_host : cluster.inter_host;
  const int sharing = std::min(ways, cluster.devices_per_host);
  groups.inter_host.bandwidth_bytes_per_s /= sharing;
  if (on_one_host) {
    groups.devices_per_host /= ways;
    if (!cluster.host_of_rank.empty()) groups.host_of_rank = std::move(hosts);
    return groups;
  }
  groups.hosts = cluster.ranks() / ways;
  groups.devices_per_host = 1;
  groups.host_of_rank.clear();
  if (!cluster.speed_of_host.empty()) groups.speed_of_host = std::move(speeds);
  groups.intra_host = groups.inter_host;
  return groups;
}

}  // namespace rannc::cost
