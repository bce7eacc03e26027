#include "partition/blocks/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "partition/blocks/contract.h"
#include "partition/blocks/linear_order.h"
#include "partition/problems.h"

namespace rannc::partition {
namespace {

using testing::chain;
using Parts = std::vector<std::vector<uint32_t>>;

Blocks blocks_of(const cost::GraphProfile& profile, int max_blocks) {
  return make_blocks(profile, atomic_pieces(profile), {.max_blocks = max_blocks, .rows = 1});
}

TEST(Blocks, ArePiecesWhenThereAreFew) {
  EXPECT_EQ(blocks_of(chain({{}, {}, {}}), 3).parts, (Parts{{0}, {1}, {2}}));
}

TEST(Blocks, BalanceTime) {
  // 3 of 6 equal pieces: pairs.
  EXPECT_EQ(blocks_of(chain({{}, {}, {}, {}, {}, {}}), 3).parts, (Parts{{0, 1}, {2, 3}, {4, 5}}));
}

TEST(Blocks, CutWhereFewBytesCross) {
  // Of the three borders only the one behind n1 is cheap: 1 byte against 100.
  const auto big = testing::Link{.bytes_per_row = 100};
  const auto small = testing::Link{.bytes_per_row = 1};
  EXPECT_EQ(blocks_of(chain({big, small, big, big}), 2).parts, (Parts{{0, 1}, {2, 3}}));
  // Behind n0 likewise, although the blocks then take 1 and 3 units.
  EXPECT_EQ(blocks_of(chain({small, big, big, big}), 2).parts, (Parts{{0}, {1, 2, 3}}));
}

TEST(Blocks, AreCutAlikeInRepeatedLayers) {
  // Eight layers of (small, large, medium), cheap to cut only behind a layer.
  std::vector<testing::Link> links;
  for (int layer = 0; layer < 8; ++layer) {
    links.push_back({.time_ns = 10, .bytes_per_row = 50});
    links.push_back({.time_ns = 80, .bytes_per_row = 50});
    links.push_back({.time_ns = 30, .bytes_per_row = 5});
  }
  const Parts parts = blocks_of(chain(links), 10).parts;
  ASSERT_EQ(parts.size(), 8u);
  for (uint32_t layer = 0; layer < 8; ++layer) {
    EXPECT_EQ(parts[layer], (std::vector<uint32_t>{3 * layer, 3 * layer + 1, 3 * layer + 2}));
  }
}

TEST(Blocks, StayWithinTheLimitAndConvexOnRandomGraphs) {
  std::mt19937 random(17);
  for (int trial = 0; trial < 200; ++trial) {
    const cost::GraphProfile profile = testing::random_profile(random, 60);
    const int most = 2 + trial % 30;
    const Parts parts = blocks_of(profile, most).parts;
    ASSERT_LE(parts.size(), static_cast<size_t>(most));
    // contract() checks that no block reads a later one.
    const cost::GraphProfile blocks = contract(profile, parts, {1});
    double total = 0, longest_node = 0, longest_block = 0;
    for (const cost::ProfileNode& node : profile.nodes) {
      total += node.forward_ns[0] + node.backward_ns[0];
      longest_node = std::max(longest_node, node.forward_ns[0] + node.backward_ns[0]);
    }
    for (const cost::ProfileNode& block : blocks.nodes) {
      longest_block = std::max(longest_block, block.forward_ns[0] + block.backward_ns[0]);
    }
    ASSERT_LE(longest_block, std::max(2 * total / most, longest_node) * (1 + 1e-9));
  }
}

TEST(Order, RunsBranchesOneAfterTheOtherWhenThatCutsLess) {
  // Two branches of three nodes, given in turns: a0 b0 a1 b1 a2 b2, joined by n6. Every border in
  // the middle of the given order cuts both branches; depth first cuts one and a finished result.
  cost::GraphProfile profile = chain({{}, {}, {}, {}, {}, {}, {}});
  profile.nodes[1].inputs = {{true, 0, 0}};
  for (uint32_t k = 2; k < 6; ++k) profile.nodes[k].inputs = {{false, k - 2, 0}};
  profile.nodes[6].inputs = {{false, 4, 0}, {false, 5, 0}};
  for (cost::ProfileNode& node : profile.nodes) node.outputs[0].size.bytes_per_row = 100;
  profile.nodes[4].outputs[0].size.bytes_per_row = 1;

  EXPECT_EQ(depth_first_order(profile), (std::vector<uint32_t>{0, 2, 4, 1, 3, 5, 6}));
  EXPECT_EQ(cut_bytes(profile, {0, 1, 2, 3, 4, 5, 6}, 1),
            (std::vector<double>{0, 100, 200, 200, 200, 101, 101}));
  EXPECT_EQ(cut_bytes(profile, depth_first_order(profile), 1),
            (std::vector<double>{0, 100, 100, 1, 101, 101, 101}));
  EXPECT_TRUE(blocks_of(profile, 7).depth_first);
  EXPECT_EQ(blocks_of(profile, 7).parts, (Parts{{0}, {2}, {4}, {1}, {3}, {5}, {6}}));
}

TEST(Contract, SumsCostsAndKeepsWhatCrosses) {
  // {n0, n1} | {n2}: n1's value leaves, n0's does not; both parts use parameter 0.
  cost::GraphProfile profile = chain({{.bytes_per_row = 4, .param_bytes = 10, .saved_per_row = 3},
                                      {.bytes_per_row = 6, .saved_per_row = 5},
                                      {}});
  profile.nodes[1].params = {0};
  profile.nodes[2].params = {0};
  profile.nodes[0].workspace_bytes = {7};
  profile.nodes[1].workspace_bytes = {2};
  const cost::GraphProfile blocks = contract(profile, {{0, 1}, {2}}, {2, 3});
  ASSERT_EQ(blocks.nodes.size(), 2u);
  EXPECT_EQ(blocks.nodes[0].params, std::vector<uint32_t>{0});
  ASSERT_EQ(blocks.nodes[0].outputs.size(), 1u);
  EXPECT_EQ(blocks.nodes[0].outputs[0].size.bytes_per_row, 6);
  EXPECT_EQ(blocks.nodes[1].inputs, (std::vector<cost::ProfileUse>{{false, 0, 0}}));
  // Forward 100 ns, saved 3 + 5 bytes a row; the workspace of n0, 7 a row, is the larger.
  EXPECT_EQ(blocks.nodes[0].forward_ns, (std::vector<double>{400, 600}));
  EXPECT_EQ(blocks.nodes[0].saved_bytes, (std::vector<double>{16, 24}));
  EXPECT_EQ(blocks.nodes[0].workspace_bytes, (std::vector<double>{14, 21}));
}

}  // namespace
}  // namespace rannc::partition
