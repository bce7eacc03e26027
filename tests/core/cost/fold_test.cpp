#include <gtest/gtest.h>

#include "rannc/cost/graph_profile.h"
#include "rannc/ir/text.h"

namespace rannc::cost {
namespace {

/// A tied embedding used by two nodes, a row-free chain (mask = tril(ones), used twice), an
/// in-place add that makes a group, a step counter, and an integer result.
const ir::Graph kGraph = ir::parse(R"(graph "g"(%x) -> (%out)
  input x: int64[B, 3] apart(0)
  parameter emb.weight: float32[10, 8] grad also head.weight
  parameter frozen: float32[8]
  buffer steps: int64[]
  constant ones: float32[3, 3] #0
  node count = aten::add_.Tensor(%steps, 1, 1) -> %steps2 writes %steps
    result steps2: int64[] shares %steps
  node tril = aten::tril(%ones, 0) -> %mask
    result mask: float32[3, 3]
  node scale = aten::mul.Scalar(%mask, 2.0) -> %scaled
    result scaled: float32[3, 3]
  node embed = aten::embedding(%emb.weight, %x, -1, false, false) -> %h
    result h: float32[B, 3, 8] apart(0) grad
  node add = aten::add_.Tensor(%h, %frozen, 1) -> %h2 writes %h
    result h2: float32[B, 3, 8] apart(0) grad shares %h
  node mix = aten::matmul(%scaled, %h2) -> %m
    result m: float32[B, 3, 8] apart(0) grad
  node best = aten::max.dim(%m, -1, false) -> %values, %indices
    result values: float32[B, 3] apart(0) grad
    result indices: int64[B, 3] apart(0)
  node pairs = aten::einsum("i,j->ij", %values, %scaled, %emb.weight) -> %out
    result out: float32[B, B] mixed grad
)");

CostTable table() {
  CostTable table{{1, 4}, {}};
  // Node i costs 10^i forward at one row, twice that at four.
  int64_t ns = 1;
  for (size_t i = 0; i < kGraph.nodes.size(); ++i, ns *= 10) {
    table.node.push_back({{ns, 0, 3, 5}, {2 * ns, 0, 3, 5}});
  }
  return table;
}

const ProfileNode& node(const GraphProfile& profile, const std::string& name) {
  for (const ProfileNode& found : profile.nodes) {
    if (found.name == name) return found;
  }
  throw std::out_of_range(name);
}

TEST(Fold, KeepsTheRowDependentNodesInOrder) {
  const GraphProfile profile = fold(kGraph, table(), {});
  verify(profile);
  ASSERT_EQ(profile.nodes.size(), 5U);
  EXPECT_EQ(profile.nodes[0].name, "embed");
  EXPECT_EQ(profile.nodes[4].name, "pairs");
  EXPECT_EQ(profile.name, "g");
  EXPECT_EQ(profile.dtype, "float32");
  EXPECT_EQ(graph_profile_from_json(to_json(profile)), profile);
}

TEST(Fold, ChargesRowFreeNodesToEachUserThroughChains) {
  const GraphProfile profile = fold(kGraph, table(), {});
  // mix (10^5) pays for scale (10^2) and tril (10^1); pairs (10^7) does so again.
  EXPECT_EQ(node(profile, "mix").forward_ns, (std::vector<double>{100110, 200220}));
  EXPECT_EQ(node(profile, "pairs").forward_ns, (std::vector<double>{10000110, 20000220}));
  EXPECT_EQ(node(profile, "mix").saved_bytes, (std::vector<double>{9, 9}));
  EXPECT_EQ(node(profile, "mix").workspace_bytes, (std::vector<double>{5, 5}));
  // With them comes the constant that they read.
  EXPECT_EQ(profile.params[node(profile, "mix").params.at(0)].id, "ones");
}

TEST(Fold, ChargesAStepCounterToItsOwner) {
  const GraphProfile profile = fold(kGraph, table(), {});
  // The first row-dependent node of the module: 10^3 + 10^0.
  EXPECT_EQ(node(profile, "embed").forward_ns, (std::vector<double>{1001, 2002}));
  EXPECT_EQ(node(profile, "embed").params.size(), 2U);
}

TEST(Fold, TakesParametersOnceWithTheirState) {
  const GraphProfile profile = fold(kGraph, table(), {111, 222, 0});
  ASSERT_EQ(profile.params.size(), 4U);
  EXPECT_EQ(profile.params[0], (ProfileParam{"emb.weight", 320, true, 111}));
  EXPECT_EQ(profile.params[1], (ProfileParam{"frozen", 32, false, 222}));
  EXPECT_EQ(profile.params[2], (ProfileParam{"steps", 8, false, -1}));
  EXPECT_EQ(profile.params[3], (ProfileParam{"ones", 36, false, -1}));
}

TEST(Fold, AddsUpTimesOfTheHost) {
  // "scale" runs with "mix", which uses it; nothing has times of the host without them.
  CostTable costs = table();
  costs.node[2][1].forward_host_ns = 7;
  costs.node[5][1].forward_host_ns = 5;
  const GraphProfile profile = fold(kGraph, costs, {});
  EXPECT_EQ(profile.version, 2);
  EXPECT_EQ(node(profile, "mix").forward_host_ns, (std::vector<double>{0, 12}));
  EXPECT_FALSE(fold(kGraph, table(), {}).has_host_times());
}

TEST(Fold, GivesSizesAsLinesInTheRows) {
  const GraphProfile profile = fold(kGraph, table(), {});
  EXPECT_EQ(profile.inputs[0], (ProfileInput{"x", {24, 0}}));
  EXPECT_EQ(node(profile, "embed").outputs[0], (ProfileOutput{{96, 0}, true}));
  EXPECT_EQ(node(profile, "best").outputs[1], (ProfileOutput{{24, 0}, false}));
  // 4 B^2 bytes: 4 at one row, 16 at two: 12 per row; 4 - 12 is below 0, so the fixed part is 0.
  EXPECT_EQ(node(profile, "pairs").outputs[0], (ProfileOutput{{12, 0}, true}));
}

TEST(Fold, WhatStaysOnTheHostTakesNoneOfTheDevicesMemory) {
  const ir::Graph graph = ir::parse(R"(graph "g"(%x, %lengths) -> (%y)
  input x: float32[B, 4] apart(0)
  input lengths: int64[B] apart(0) host
  buffer positions: int64[1000] host
  constant table: float32[1000] host #0
  node kept = aten::lt.Tensor(%positions, %lengths) -> %k
    result k: boolean[B, 1000] apart(0) host
  node copied = aten::where.self(%k, %x, %table) -> %y
    result y: float32[B, 4] apart(0)
)");
  const CostTable costs{{1, 2}, {{NodeCost{}, NodeCost{}}, {NodeCost{}, NodeCost{}}}};
  const GraphProfile profile = fold(graph, costs, {});
  EXPECT_EQ(profile.inputs[0], (ProfileInput{"x", {16, 0}}));
  EXPECT_EQ(profile.inputs[1], (ProfileInput{"lengths", {0, 0}}));
  EXPECT_EQ(profile.params[0], (ProfileParam{"positions", 0, false, -1}));
  EXPECT_EQ(profile.params[1], (ProfileParam{"table", 0, false, -1}));
  EXPECT_EQ(node(profile, "kept").outputs[0], (ProfileOutput{{0, 0}, false}));
  EXPECT_EQ(node(profile, "copied").outputs[0], (ProfileOutput{{16, 0}, false}));
}

TEST(Fold, NamesUsesAndGroups) {
  const GraphProfile profile = fold(kGraph, table(), {});
  EXPECT_EQ(node(profile, "embed").inputs, (std::vector<ProfileUse>{{true, 0, 0}}));
  EXPECT_EQ(node(profile, "pairs").inputs, (std::vector<ProfileUse>{{false, 3, 0}}));
  // embed's result is written by add, so they share a stage.
  EXPECT_EQ(node(profile, "embed").group, "embed");
  EXPECT_EQ(node(profile, "add").group, "embed");
  EXPECT_EQ(node(profile, "mix").group, "");
}

TEST(Fold, RenamesAnInputThatIsCalledLikeANode) {
  const ir::Graph graph = ir::parse(R"(graph "g"(%relu) -> (%y)
  input relu: float32[B, 4] apart(0)
  node relu = aten::relu(%relu) -> %y
    result y: float32[B, 4] apart(0)
)");
  const GraphProfile profile = fold(graph, {{1}, {{NodeCost{}}}}, {});
  EXPECT_EQ(profile.inputs[0].name, "relu_input");
  EXPECT_EQ(graph_profile_from_json(to_json(profile)), profile);
}

}  // namespace
}  // namespace rannc::cost
