#include "partition/blocks/down_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/contract.h"
#include "partition/problems.h"
#include "partition/stages/range_costs.h"
#include "rannc/partition/planner.h"

namespace rannc::partition {
namespace {

using testing::chain;

/// Two chains beside each other, neither with values of any size.
cost::GraphProfile two_chains(std::vector<testing::Link> links, size_t first_length) {
  for (testing::Link& link : links) link.bytes_per_row = 0;
  cost::GraphProfile profile = chain(links);
  if (first_length < links.size()) profile.nodes[first_length].inputs = {{true, 0, 0}};
  return profile;
}

std::vector<BlockSet> sets_of(const cost::GraphProfile& profile, size_t most) {
  const auto parts = single_blocks(profile.nodes.size());
  const BlockCosts costs(profile, parts);
  return down_sets(BlockModel(contract(profile, parts, {}), {}, costs), most);
}

TEST(DownSets, AreThePairsOfPrefixesOfTwoChains) {
  // 0 to 2 nodes of the one, 0 to 3 of the other.
  const auto profile = two_chains(std::vector<testing::Link>(5), 2);
  const std::vector<BlockSet> sets = sets_of(profile, 12);
  ASSERT_EQ(sets.size(), 12u);
  EXPECT_TRUE(sets.front().none());
  EXPECT_EQ(sets.back().count(), 5u);
  for (size_t k = 1; k < sets.size(); ++k) {
    EXPECT_LE(sets[k - 1].count(), sets[k].count());
    EXPECT_TRUE(sets[k].test(0) || !sets[k].test(1));
    EXPECT_TRUE(sets[k].test(3) || !sets[k].test(4));
  }
  EXPECT_TRUE(sets_of(profile, 11).empty());
  EXPECT_EQ(sets_of(chain({{}, {}, {}}), 100).size(), 4u);
}

/// A range between two down-sets costs what it costs in a line that has the one, then the range,
/// then the rest.
TEST(DownSets, RangesCostWhatTheyCostInALine) {
  std::mt19937 random(3);
  int checked = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const cost::GraphProfile profile = testing::random_profile(random, 3 + trial % 6);
    const auto count = static_cast<uint32_t>(profile.nodes.size());
    const auto parts = single_blocks(count);
    const Request request;
    const BlockCosts costs(profile, parts);
    const cost::GraphProfile blocks = contract(profile, parts, {});
    const BlockModel model(blocks, request, costs);
    const std::vector<BlockSet> sets = down_sets(model, 1000);
    const RangeCosts between(blocks, request, costs, sets);
    for (int first = 0; first < between.end(); ++first) {
      for (int last = first + 1; last <= between.end(); ++last) {
        const BlockSet& front = sets[static_cast<size_t>(first)];
        const BlockSet& whole = sets[static_cast<size_t>(last)];
        ASSERT_EQ(between.nested(first, last), (front & ~whole).none());
        if (!between.nested(first, last)) continue;
        std::vector<uint32_t> order;
        for (const int wanted : {0, 1, 2}) {
          for (uint32_t block = 0; block < count; ++block) {
            const int place = front.test(block) ? 0 : whole.test(block) ? 1 : 2;
            if (place == wanted) order.push_back(block);
          }
        }
        std::vector<std::vector<uint32_t>> ordered;
        for (const uint32_t block : order) ordered.push_back({block});
        const BlockCosts line_costs(costs, order);
        const RangeCosts line(contract(blocks, ordered, {}), request, line_costs);
        const int i = between.size(first), j = between.size(last);
        const auto members = between.members(first, last);
        auto expected = std::vector<uint32_t>(order.begin() + i, order.begin() + j);
        ASSERT_EQ(members, expected);
        const auto& a = between.parameters(first, last);
        const auto& b = line.parameters(i, j);
        ASSERT_DOUBLE_EQ(a.bytes, b.bytes);
        ASSERT_DOUBLE_EQ(a.gradient_bytes, b.gradient_bytes);
        ASSERT_DOUBLE_EQ(a.optimizer_bytes, b.optimizer_bytes);
        ASSERT_DOUBLE_EQ(a.own_gradient_bytes, b.own_gradient_bytes);
        ASSERT_DOUBLE_EQ(a.tied_gradient_bytes, b.tied_gradient_bytes);
        const auto& x = between.border(first, last);
        const auto& y = line.border(i, j);
        for (const auto size :
             {&RangeCosts::Border::in, &RangeCosts::Border::in_grad, &RangeCosts::Border::out,
              &RangeCosts::Border::out_grad, &RangeCosts::Border::graph_in}) {
          ASSERT_DOUBLE_EQ((x.*size).at(3), (y.*size).at(3));
        }
        ASSERT_EQ(x.enters, y.enters);
        ASSERT_EQ(x.enters_grad, y.enters_grad);
        ASSERT_EQ(x.leaves, y.leaves);
        ASSERT_EQ(x.leaves_grad, y.leaves_grad);
        const RangeCosts::Work p = between.at_rows(3).work(first, last);
        const RangeCosts::Work q = line.at_rows(3).work(i, j);
        ASSERT_NEAR(p.forward_ns, q.forward_ns, 1e-6);
        ASSERT_NEAR(p.backward_ns, q.backward_ns, 1e-6);
        ASSERT_NEAR(p.saved_bytes, q.saved_bytes, 1e-6);
        ASSERT_EQ(p.workspace_bytes, q.workspace_bytes);
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 2000);
}

/// Of two chains of nine nodes with random parameters, two devices hold exactly the cut that shares
/// them best, which lies in no particular order of the nodes. (More nodes than the exact search
/// takes.)
TEST(DownSets, TheOnlyCutThatFitsIsFound) {
  std::mt19937 random(17);
  const size_t length = 9;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<testing::Link> links(2 * length);
    double total = 0;
    for (testing::Link& link : links) {
      link.param_bytes = std::uniform_int_distribution<int>(1, 1000)(random);
      total += link.param_bytes;
    }
    double least = total;
    for (size_t i = 0; i <= length; ++i) {
      for (size_t j = 0; j <= length; ++j) {
        double front = 0;
        for (size_t k = 0; k < i; ++k) front += links[k].param_bytes;
        for (size_t k = 0; k < j; ++k) front += links[length + k].param_bytes;
        least = std::min(least, std::max(front, total - front));
      }
    }
    Request request;
    request.global_batch = 4;
    // Parameters, gradients and twice as much of the optimizer; the graph's input is not held.
    const plan::Plan plan =
        make_plan(two_chains(links, length), testing::cluster(1, 2, 4 * least), request);
    EXPECT_TRUE(plan.feasible) << "trial " << trial << ": " << plan.reason;
  }
}

}  // namespace
}  // namespace rannc::partition
