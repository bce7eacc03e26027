#include "rannc/cost/accumulation.h"

#include <gtest/gtest.h>

namespace rannc::cost {
namespace {

TEST(Accumulation, IsPaidByEachUseOfATrainableParameter) {
  GraphProfile profile;
  profile.rows = {1, 2};
  profile.params = {{.id = "weight", .bytes = 100},
                    {.id = "frozen", .bytes = 1000, .trainable = false}};
  const std::vector<std::vector<uint32_t>> params = {{0, 1}, {}, {0}};
  for (const std::vector<uint32_t>& used : params) {
    ProfileNode node;
    node.params = used;
    node.forward_ns = {1, 2};
    node.backward_ns = {3, 4};
    profile.nodes.push_back(std::move(node));
  }
  const GraphProfile with = with_accumulation(profile, 0.5);
  EXPECT_EQ(with.nodes[0].backward_ns, (std::vector<double>{53, 54}));
  EXPECT_EQ(with.nodes[1], profile.nodes[1]);
  EXPECT_EQ(with.nodes[2].backward_ns, (std::vector<double>{53, 54}));
  EXPECT_EQ(with.nodes[2].forward_ns, profile.nodes[2].forward_ns);
}

}  // namespace
}  // namespace rannc::cost
