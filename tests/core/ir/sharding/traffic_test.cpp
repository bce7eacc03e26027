#include <gtest/gtest.h>

#include "rannc/ir/shard.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

/// 10 inner units between 6 inputs and 6 outputs.
Graph mlp() {
  return parse(R"(graph mlp(%x) -> (%y)
  input x: float32[B, 6] apart(0) grad
  parameter up: float32[10, 6] grad
  parameter down: float32[6, 10] grad
  node first = aten::linear(%x, %up, none) -> %h
    result h: float32[B, 10] apart(0) grad
  node act = aten::gelu(%h, "none") -> %a
    result a: float32[B, 10] apart(0) grad
  node second = aten::linear(%a, %down, none) -> %y
    result y: float32[B, 6] apart(0) grad
)");
}

/// One collective on a value of 6 float32 a row, as `places` takes it.
CollectiveTraffic of(const std::string& line, const std::string& result, int ways) {
  const Graph graph = parse("graph one(%x) -> (%y)\n  input x: float32[B, 6] apart(0) grad\n" +
                            ("  node n = " + line) + " -> %y\n    result y: " + result + "\n");
  return traffic_of(graph, NodeId{0}, ways, 5);
}

TEST(Traffic, ASumGoesRoundTwice) {
  // 5 rows of 24 bytes on 4 ranks: each sends 3 quarters of them, twice.
  const auto [forward, backward] = of("group::sum(%x)", "float32[B, 6] apart(0) grad", 4);
  EXPECT_EQ(forward.bytes, 2 * 3 * 120 / 4);
  EXPECT_EQ(forward.messages, 6);
  EXPECT_EQ(backward.bytes, 0);
}

TEST(Traffic, TheGradientOfWhatNeedsNoneIsNotSummed) {
  EXPECT_EQ(of("group::sum_gradient(%x)", "float32[B, 6] apart(0) grad", 2).backward.bytes, 120);
  EXPECT_EQ(of("group::sum_gradient(%x)", "float32[B, 6] apart(0)", 2).backward.bytes, 0);
}

TEST(Traffic, AGatherSendsTheLongestPartToEachOther) {
  // 6 of 16 on three places as 6, 5 and 5: each sends 5 rows of 6 numbers to two others.
  const auto [forward, backward] = of("group::all_gather(%x, 1, [1, 0, 6, 1, 6, 5, 1, 11, 5])",
                                      "float32[B, 16] apart(0) grad", 3);
  EXPECT_EQ(forward.bytes, 2 * 120);
  EXPECT_EQ(forward.messages, 2);
  EXPECT_EQ(backward.bytes, 0);
}

TEST(Traffic, ASliceGathersInItsBackward) {
  // 6 as 3 and 3: 5 rows of 3 numbers.
  const auto [forward, backward] =
      of("group::slice(%x, 1, [1, 0, 3, 1, 3, 3])", "float32[B, 3] apart(0) grad", 2);
  EXPECT_EQ(forward.bytes, 0);
  EXPECT_EQ(backward.bytes, 60);
}

TEST(Traffic, WhatOnePlaceComputesIsOfANodeOfTheWhole) {
  const Graph whole = mlp();
  const ShardedGraph sharded = shard(whole, 2, 0);
  ASSERT_EQ(sharded.origins.size(), sharded.graph.nodes.size());
  std::string text;
  for (size_t index = 0; index < sharded.origins.size(); ++index) {
    text += sharded.graph.nodes[index].op + " of " + whole[sharded.origins[index]].name + "; ";
  }
  EXPECT_EQ(text,
            "group::sum_gradient of first; aten::linear of first; aten::gelu of act; "
            "aten::linear of second; group::sum of second; ");
}

TEST(Traffic, TheWholeGraphWithSizesOfAPlaceHasItsPartsAndWholeResults) {
  const Graph whole = mlp();
  const Graph local = with_sizes_of(whole, shard(whole, 3, 0));
  EXPECT_EQ(local[ValueId{1}].dims[0], (AffineInt{4, 0}));  // up
  EXPECT_EQ(local[ValueId{2}].dims[1], (AffineInt{4, 0}));  // down
  EXPECT_EQ(local[ValueId{3}].dims[1], (AffineInt{4, 0}));  // h
  EXPECT_EQ(local[local.outputs[0]].dims[1], (AffineInt{6, 0}));
}

TEST(Traffic, NoBorderPartsNodesBetweenWhichAPartGoes) {
  const Graph whole = mlp();
  const auto pairs = joined_by_parts(whole, shard(whole, 2, 0));
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_EQ(pairs[0], std::pair(NodeId{0}, NodeId{1}));
  EXPECT_EQ(pairs[1], std::pair(NodeId{1}, NodeId{2}));
}

TEST(Traffic, LayoutsAreOfAllStateAndPlaces) {
  const Layouts found = layouts(mlp(), 3, {"up:0"});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found.at("down").dim, 1);
  EXPECT_EQ(found.at("down").stretches,
            (std::vector<std::vector<Stretch>>{{{0, 4}}, {{4, 3}}, {{7, 3}}}));
}

}  // namespace
}  // namespace rannc::ir
