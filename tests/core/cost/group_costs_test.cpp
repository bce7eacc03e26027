#include "rannc/cost/group_costs.h"

#include <gtest/gtest.h>

#include "rannc/cost/graph_profile.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

/// Two layers of 6 and 10; only what is between them is cut.
const ir::Graph kWhole = ir::parse(R"(graph mlp(%x) -> (%z)
  input x: float32[B, 6] apart(0) grad
  parameter up: float32[10, 6] grad
  parameter down: float32[6, 10] grad
  node first = aten::linear(%x, %up, none) -> %h
    result h: float32[B, 10] apart(0) grad
  node second = aten::linear(%h, %down, none) -> %y
    result y: float32[B, 6] apart(0) grad
  node last = aten::tanh(%y) -> %z
    result z: float32[B, 6] apart(0) grad
)");
/// 1 ns for a byte, 1000 ns for a message.
constexpr Link kLink{.bandwidth_bytes_per_s = 1e9, .latency_ns = 1000};

/// Of the nodes sum_gradient, first, second's part, its sum, last.
CostTable table() {
  CostTable table{{1}, {}};
  for (const int64_t ns : {0, 10, 20, 0, 30}) table.node.push_back({{ns, 2 * ns, 0, 5}});
  return table;
}

TEST(GroupCosts, ANodeCostsItsPartAndItsCollectives) {
  const ir::ShardedGraph sharded = ir::shard(kWhole, 2, 0);
  const GroupCosts costs =
      of_whole_nodes(kWhole, sharded, table(), {{{1, 2}, {8}}, {{2, 3}, {4}}}, 2, kLink);
  // On two ranks each sends half of 24 bytes twice, by two messages: 2024 ns.
  ASSERT_EQ(costs.table.node.size(), 3U);
  EXPECT_EQ(costs.table.node[0][0], (NodeCost{10, 20 + 2024, 0, 5}));
  EXPECT_EQ(costs.table.node[1][0], (NodeCost{20 + 2024, 40, 0, 5}));
  EXPECT_EQ(costs.table.node[2][0], (NodeCost{30, 60, 0, 5}));
  EXPECT_EQ(costs.saved, (std::vector<SavedStorage>{{{0, 1}, {8}}, {{1}, {4}}}));
}

TEST(GroupCosts, TheProfileHasTheSizesOfThePartAndNoBorderWithinIt) {
  const ir::ShardedGraph sharded = ir::shard(kWhole, 2, 0);
  const GroupCosts costs = of_whole_nodes(kWhole, sharded, table(), {}, 2, kLink);
  const GraphProfile profile = fold(ir::with_sizes_of(kWhole, sharded), costs.table, {}, {},
                                    ir::joined_by_parts(kWhole, sharded));
  verify(profile);
  EXPECT_EQ(profile.params[0].bytes, 5 * 6 * 4);
  EXPECT_EQ(profile.nodes[0].outputs[0].size.bytes_per_row, 5 * 4);
  EXPECT_EQ(profile.nodes[1].outputs[0].size.bytes_per_row, 6 * 4);
  EXPECT_EQ(profile.nodes[0].group, "first");
  EXPECT_EQ(profile.nodes[1].group, "first");
  EXPECT_EQ(profile.nodes[2].group, "");
}

TEST(GroupCosts, GroupsOnAHostAreItsDevicesAndShareItsCard) {
  const Cluster cluster{.hosts = 2,
                        .devices_per_host = 4,
                        .device_memory_bytes = 100,
                        .intra_host = {8e9, 10},
                        .inter_host = {2e9, 50}};
  Link link;
  const Cluster groups = of_groups(cluster, 2, &link);
  EXPECT_EQ(groups.hosts, 2);
  EXPECT_EQ(groups.devices_per_host, 2);
  EXPECT_EQ(groups.device_memory_bytes, 100);
  EXPECT_EQ(groups.inter_host.bandwidth_bytes_per_s, 1e9);
  EXPECT_EQ(link, cluster.intra_host);
}

TEST(GroupCosts, GroupsOverHostsAreHosts) {
  const Cluster cluster{.hosts = 4,
                        .devices_per_host = 1,
                        .device_memory_bytes = 100,
                        .intra_host = {8e9, 10},
                        .inter_host = {2e9, 50}};
  Link link;
  const Cluster groups = of_groups(cluster, 2, &link);
  EXPECT_EQ(groups.ranks(), 2);
  EXPECT_EQ(groups.devices_per_host, 1);
  EXPECT_EQ(groups.inter_host, cluster.inter_host);
  EXPECT_EQ(link, cluster.inter_host);
  EXPECT_THROW((void)of_groups(cluster, 3, &link), ConfigError);
}

}  // namespace
}  // namespace rannc::cost
