#include "rannc/ir/shard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

/// Collectives and what is computed between them, without arguments: "linear gelu linear sum add".
std::string operators(const Graph& graph) {
  std::string line;
  for (const Node& node : graph.nodes) {
    const size_t name = node.op.find("::") + 2;
    const std::string_view base = std::string_view(node.op).substr(name);
    line += fmt::format("{}{}{}", line.empty() ? "" : " ",
                        node.op.starts_with("group::") ? "@" : "", base.substr(0, base.find('.')));
  }
  return line;
}

/// "w:0 [0,2) [4,6)" for each parameter, buffer and constant of which a place has a part.
std::string parts(const ShardedGraph& sharded) {
  std::string text;
  for (const Part& part : sharded.parts) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : "; ", part.name, part.dim);
    for (const auto& [begin, size] : part.stretches) {
      text += fmt::format(" [{},{})", begin, begin + size);
    }
  }
  return text;
}

std::vector<std::string> reasons(const Graph& graph) {
  std::vector<std::string> found;
  for (const Factor& factor : factors(graph)) found.push_back(factor.id + " " + factor.why_not);
  return found;
}

const Graph& mlp() {
  static const Graph graph = parse(R"(graph mlp(%x) -> (%y)
  input x: float32[B, 6] apart(0) grad
  parameter up: float32[10, 6] grad
  parameter up_bias: float32[10] grad
  parameter down: float32[6, 10] grad
  parameter down_bias: float32[6] grad
  node first = aten::linear(%x, %up, %up_bias) -> %h
    result h: float32[B, 10] apart(0) grad
  node act = aten::gelu(%h, "none") -> %a
    result a: float32[B, 10] apart(0) grad
  node second = aten::linear(%a, %down, %down_bias) -> %y
    result y: float32[B, 6] apart(0) grad
)");
  return graph;
}

TEST(Shard, APerceptronIsCutByItsInnerDimension) {
  // 10 units on 3 places: 4, 3 and 3. The bias behind the sum is whole, and added once.
  const ShardedGraph second = shard(mlp(), 3, 1);
  EXPECT_EQ(second.factors, std::vector<std::string>{"up:0"});
  EXPECT_EQ(operators(second.graph), "@sum_gradient linear gelu linear @sum add");
  EXPECT_EQ(parts(second), "up:0 [4,7); up_bias:0 [4,7); down:1 [4,7)");
  EXPECT_TRUE(second.gathered.empty());
}

TEST(Shard, ThePlacesDifferInSizesOnly) {
  const Graph first = shard(mlp(), 3, 0).graph;
  const Graph last = shard(mlp(), 3, 2).graph;
  EXPECT_EQ(operators(first), operators(last));
  EXPECT_EQ(first[ValueId{1}].dims[0], (AffineInt{4, 0}));
  EXPECT_EQ(last[ValueId{1}].dims[0], (AffineInt{3, 0}));
  verify(first);
  verify(last);
}

TEST(Shard, BytesAreThoseOfTwoSums) {
  // Forward of the second product and backward of the first: 2 * 3/4 * 6 numbers of 4 bytes, twice.
  EXPECT_EQ(all_traffic(shard(mlp(), 4, 0).graph, 4, 1).bytes, 72);
}

TEST(Shard, WhatIsNoFactorIsAnErrorThatNamesIt) {
  const auto message = [](const std::string& id, int ways) -> std::string {
    try {
      (void)shard(mlp(), ways, 0, std::vector{id});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message("sideways", 2), "there is no factor 'sideways' in this graph");
  EXPECT_EQ(message("up:0", 11), "factor 'up:0' has 10 units, too few for 11 ways");
}

/// Attention over heads of width 2, behind one product for queries, keys and values.
Graph attention(const std::string& fused, const std::string& lines) {
  return parse(fmt::format(R"(graph attention(%x) -> (%y)
  input x: float32[B, 3, 8] apart(0) grad
  parameter qkv: float32[{0}, 8] grad
  parameter out: float32[8, 8] grad
  node fused = aten::linear(%x, %qkv, none) -> %h
    result h: float32[B, 3, {0}] apart(0) grad
{1}
  node attend = aten::scaled_dot_product_attention(%q, %k, %v, none, 0.0, true, none, true) -> %o
    result o: float32[B, 4, 3, 2] apart(0) grad
  node back = aten::transpose.int(%o, 1, 2) -> %t
    result t: float32[B, 3, 4, 2] apart(0) grad shares %o
  node flat = aten::reshape(%t, [B, 3, 8]) -> %r
    result r: float32[B, 3, 8] apart(0) grad
  node project = aten::linear(%r, %out, none) -> %y
    result y: float32[B, 3, 8] apart(0) grad
)",
                           fused, lines));
}

std::string heads(const std::string& name, const std::string& from, int number) {
  return fmt::format(R"(
  node {0}_view = aten::view(%{1}, [B, 3, {2}, 2]) -> %{0}_heads
    result {0}_heads: float32[B, 3, {2}, 2] apart(0) grad shares %h
  node {0}_turn = aten::transpose.int(%{0}_heads, 1, 2) -> %{0}
    result {0}: float32[B, {2}, 3, 2] apart(0) grad shares %h)",
                     name, from, number);
}

TEST(Shard, FusedQueriesKeysAndValuesOfEqualPartsAreCutByHeads) {
  const Graph graph =
      attention("24", R"(
  node parts = aten::split.Tensor(%h, 8, -1) -> %a, %b, %c
    result a: float32[B, 3, 8] apart(0) grad shares %h
    result b: float32[B, 3, 8] apart(0) grad shares %h
    result c: float32[B, 3, 8] apart(0) grad shares %h)" +
                          heads("q", "a", 4) + heads("k", "b", 4) + heads("v", "c", 4));
  const ShardedGraph second = shard(graph, 2, 1);
  EXPECT_EQ(parts(second), "qkv:0 [4,8) [12,16) [20,24); out:1 [4,8)");
  EXPECT_EQ(operators(second.graph),
            "@sum_gradient linear split_with_sizes view transpose view transpose view transpose "
            "scaled_dot_product_attention transpose reshape linear @sum");
  // 4 heads on 3 places: the first has two.
  EXPECT_EQ(parts(shard(graph, 3, 0)), "qkv:0 [0,4) [8,12) [16,20); out:1 [0,4)");
}

TEST(Shard, GroupedHeadsAreCutByThoseOfTheKeys) {
  // Phi-3: 4 heads of queries, 2 of keys and of values. Units are the heads of keys.
  const Graph graph =
      attention("16", R"(
  node parts = aten::split_with_sizes(%h, [8, 4, 4], -1) -> %a, %b, %c
    result a: float32[B, 3, 8] apart(0) grad shares %h
    result b: float32[B, 3, 4] apart(0) grad shares %h
    result c: float32[B, 3, 4] apart(0) grad shares %h)" +
                          heads("q", "a", 4) + heads("k", "b", 2) + heads("v", "c", 2));
  EXPECT_EQ(parts(shard(graph, 2, 1)), "qkv:0 [4,8) [10,12) [14,16); out:1 [4,8)");
  // On more ways than heads of keys nothing here can be cut by heads.
  EXPECT_THROW((void)shard(graph, 4, 0, std::vector<std::string>{"qkv:0"}), ConfigError);
}

TEST(Shard, HeadsInterleavedWithQueriesKeysAndValuesAreCut) {
  // GPT-NeoX: each head has its query, key and value side by side.
  const Graph graph = attention("24", R"(
  node view = aten::view(%h, [B, 3, 4, 6]) -> %each
    result each: float32[B, 3, 4, 6] apart(0) grad shares %h
  node turn = aten::transpose.int(%each, 1, 2) -> %turned
    result turned: float32[B, 4, 3, 6] apart(0) grad shares %h
  node parts = aten::split.Tensor(%turned, 2, -1) -> %q, %k, %v
    result q: float32[B, 4, 3, 2] apart(0) grad shares %h
    result k: float32[B, 4, 3, 2] apart(0) grad shares %h
    result v: float32[B, 4, 3, 2] apart(0) grad shares %h)");
  EXPECT_EQ(parts(shard(graph, 2, 1)), "qkv:0 [12,24); out:1 [4,8)");
}

TEST(Shard, HeadsOfWhichSomeSegmentsHaveNoneAreNotCut) {
  // Multi-query attention: one head of keys and values for all of the queries.
  const Graph graph = parse(R"(graph multi_query(%x) -> (%y)
  input x: float32[B, 8] apart(0) grad
  parameter w: float32[10, 8] grad
  parameter out: float32[8, 8] grad
  node fused = aten::linear(%x, %w, none) -> %h
    result h: float32[B, 10] apart(0) grad
  node parts = aten::split_with_sizes(%h, [8, 2], -1) -> %a, %b
    result a: float32[B, 8] apart(0) grad shares %h
    result b: float32[B, 2] apart(0) grad shares %h
  node q = aten::view(%a, [B, 4, 2]) -> %q
    result q: float32[B, 4, 2] apart(0) grad shares %h
  node k = aten::unsqueeze(%b, 1) -> %k
    result k: float32[B, 1, 2] apart(0) grad shares %h
  node both = aten::mul.Tensor(%q, %k) -> %m
    result m: float32[B, 4, 2] apart(0) grad
  node flat = aten::view(%m, [B, 8]) -> %f
    result f: float32[B, 8] apart(0) grad shares %m
  node project = aten::linear(%f, %out, none) -> %y
    result y: float32[B, 8] apart(0) grad
)");
  // The width of a head is in both segments, the heads are in the first only.
  EXPECT_EQ(reasons(graph),
            (std::vector<std::string>{"w:0 only a part of dimension 0 of 'w' has it", "w:0.2 ",
                                      "w:1 ", "out:0 "}));
}

const std::string kVocabulary = R"(graph words(%index, %target) -> (%loss)
  input index: int64[B] apart(0)
  input target: int64[B] apart(0)
  parameter words: float32[5, 4] grad
  parameter scale: float32[4] grad
  node look = aten::embedding(%words, %index, PADDING, false, false) -> %h
    result h: float32[B, 4] apart(0) grad
  node norm = aten::layer_norm(%h, [4], %scale, none, 1e-05, false) -> %n
    result n: float32[B, 4] apart(0) grad
  node head = aten::linear(%n, %words, none) -> %scores
    result scores: float32[B, 5] apart(0) grad
  node loss = aten::cross_entropy_loss(%scores, %target, none, 1, -100, 0.0) -> %loss
    result loss: float32[] mean grad
)";

Graph vocabulary(const std::string& padding) {
  std::string text = kVocabulary;
  return parse(text.replace(text.find("PADDING"), 7, padding));
}

TEST(Shard, ATiedVocabularyExchangesNumbersOfEachRowOnly) {
  const ShardedGraph second = shard(vocabulary("-1"), 2, 1, std::vector<std::string>{"words:0"});
  EXPECT_EQ(parts(second), "words:0 [3,5)");
  EXPECT_EQ(operators(second.graph),
            "sub clamp ne embedding unsqueeze masked_fill @sum layer_norm @sum_gradient linear "
            "detach amax @max sub exp sum @sum log sub clamp ne unsqueeze gather squeeze "
            "masked_fill @sum sub eq masked_fill sum ne sum div");
}

TEST(Shard, ThePaddingRowIsThatOfThePlaceThatHasIt) {
  const auto padding = [](const std::string& row, int place) {
    const auto ids = std::vector<std::string>{"words:0"};
    const ShardedGraph sharded = shard(vocabulary(row), 2, place, ids);
    for (const Node& node : sharded.graph.nodes) {
      if (node.op == "aten::embedding") return std::get<AffineInt>(node.inputs[2]).fixed;
    }
    return int64_t{-2};
  };
  // Rows 0, 1 and 2 are the first place's, 3 and 4 the second's.
  EXPECT_EQ(padding("1", 0), 1);
  EXPECT_EQ(padding("1", 1), -1);
  EXPECT_EQ(padding("4", 0), -1);
  EXPECT_EQ(padding("4", 1), 1);
}

TEST(Shard, AWholeWeightAmongPartsHasItsGradientSummed) {
  const Graph graph = parse(R"(graph scaled(%x) -> (%y)
  input x: float32[B, 6] apart(0)
  parameter up: float32[10, 6] grad
  parameter slope: float32[1] grad
  parameter down: float32[6, 10] grad
  node first = aten::linear(%x, %up, none) -> %h
    result h: float32[B, 10] apart(0) grad
  node scale = aten::mul.Tensor(%h, %slope) -> %s
    result s: float32[B, 10] apart(0) grad
  node second = aten::linear(%s, %down, none) -> %y
    result y: float32[B, 6] apart(0) grad
)");
  EXPECT_EQ(operators(shard(graph, 2, 0).graph), "linear @sum_gradient mul linear @sum");
}

TEST(Shard, StateStaysInTheLayoutInWhichItIsHeld) {
  const Layout whole;
  // Outputs of the second product, but not its bias: that is whole, and each place cuts it.
  const Layout rows{0, {{{0, 3}}, {{3, 3}}}};
  Layouts held{{"up", whole}, {"up_bias", whole}, {"down", rows}, {"down_bias", whole}};
  const ShardedGraph second = shard(mlp(), 2, 1, std::nullopt, held);
  EXPECT_EQ(parts(second), "down:0 [3,6)");
  EXPECT_EQ(operators(second.graph), "linear gelu @sum_gradient @slice linear @all_gather");
  // As no factor is cut: put together in front of the product.
  held["down"].stretches = {{{0, 2}}, {{2, 4}}};
  const ShardedGraph other = shard(mlp(), 2, 1, std::nullopt, held);
  EXPECT_EQ(parts(other), "down:0 [2,6)");
  EXPECT_EQ(operators(other.graph), "linear gelu @all_gather linear");
  EXPECT_EQ(other.gathered.size(), 1U);
  verify_shard(mlp(), {shard(mlp(), 2, 0, std::nullopt, held), other});
  // Some of it settled: the factors are those of choice, and what is held is cut for them.
  const ShardedGraph tied = shard(mlp(), 2, 1, std::nullopt, {{"up", whole}});
  EXPECT_EQ(parts(tied), "up_bias:0 [5,10); down:1 [5,10)");
  EXPECT_EQ(operators(tied.graph), "@sum_gradient @slice linear gelu linear @sum add");
}

TEST(Shard, StateThatIsWrittenInAnotherLayoutIsRefused) {
  const Graph graph = parse(R"(graph counts(%x) -> (%y)
  input x: float32[B, 6] apart(0)
  buffer seen: float32[6]
  node add = aten::add_.Tensor(%seen, 1, 1) -> %z writes %seen
    result z: float32[6] shares %seen
  node times = aten::mul.Tensor(%x, %seen) -> %y
    result y: float32[B, 6] apart(0)
)");
  EXPECT_THROW((void)shard(graph, 2, 0, std::nullopt, {{"seen", {0, {{{0, 3}}, {{3, 3}}}}}}),
               ConfigError);
}

TEST(Shard, MemoryThatIsWrittenWholeStaysWhole) {
  // The first half of a table is written in place: its storage is laid out alike everywhere.
  const Graph graph = parse(R"(graph written(%x) -> (%y)
  input x: float32[B, 6] apart(0)
  parameter up: float32[10, 6] grad
  parameter down: float32[6, 10] grad
  node first = aten::linear(%x, %up, none) -> %h
    result h: float32[B, 10] apart(0) grad
  node half = aten::slice.Tensor(%h, 1, 0, 3, 1) -> %s
    result s: float32[B, 3] apart(0) grad shares %h
  node write = aten::zero_(%s) -> %z writes %s
    result z: float32[B, 3] apart(0) grad shares %h
  node second = aten::linear(%h, %down, none) -> %y
    result y: float32[B, 6] apart(0) grad
)");
  const ShardedGraph sharded = shard(graph, 2, 0, std::vector<std::string>{"up:0"});
  for (const Part& part : sharded.parts) EXPECT_NE(part.name, "h");
  EXPECT_EQ(operators(sharded.graph).find("slice @"), std::string::npos);
  verify(sharded.graph);
}

/// A product of two parts, what follows it, and another one; `between`: lines that lead from y to
/// n.
Graph layers(const std::string& between) {
  return parse(fmt::format(R"(graph layers(%x) -> (%z)
  input x: float32[B, 5, 6] apart(0) grad
  parameter up: float32[10, 6] grad
  parameter down: float32[6, 10] grad
  parameter bias: float32[6] grad
  parameter norm: float32[6] grad
  parameter up2: float32[10, 6] grad
  parameter down2: float32[6, 10] grad
  node l1 = aten::linear(%x, %up, none) -> %h
    result h: float32[B, 5, 10] apart(0) grad
  node l2 = aten::linear(%h, %down, %bias) -> %y
    result y: float32[B, 5, 6] apart(0) grad
{}
  node l3 = aten::linear(%n, %up2, none) -> %h2
    result h2: float32[B, 5, 10] apart(0) grad
  node l4 = aten::linear(%h2, %down2, none) -> %y2
    result y2: float32[B, 5, 6] apart(0) grad
  node last = aten::gelu(%y2, "none") -> %z
    result z: float32[B, 5, 6] apart(0) grad
)",
                           between));
}

const char* const kNormed =
    R"(  node ln = aten::layer_norm(%y, [6], %norm, none, 0.00001, true) -> %n
    result n: float32[B, 5, 6] apart(0) grad)";

std::vector<ShardedGraph> along_sequence(const Graph& graph, int ways) {
  std::vector<ShardedGraph> places;
  for (int place = 0; place < ways; ++place) {
    places.push_back(shard(graph, ways, place, {}, {}, /*sequence=*/true));
  }
  verify_shard(graph, places);
  return places;
}

TEST(Shard, BetweenProductsTheSequenceIsCut) {
  // Weights of nodes on parts, here bias and norm, have partial gradients. 5 places are 3 and 2.
  const ShardedGraph second = along_sequence(layers(kNormed), 2)[1];
  EXPECT_EQ(operators(second.graph),
            "@sum_gradient linear linear @sum_gradient @reduce_scatter add @sum_gradient "
            "layer_norm @all_gather_sum_gradient linear linear @reduce_scatter gelu @all_gather");
  EXPECT_EQ(second.along_sequence, (std::set<std::string>{"n", "y", "y2", "z"}));
  const auto n = second.graph.find_value("n").value();
  EXPECT_EQ(second.graph[n].dims[1], (AffineInt{2, 0}));
}

TEST(Shard, WithTheSequenceCutOnlyWhatLeavesIsSentOnceMore) {
  // Without rows: what parameters send. With a row of 5 x 6 numbers on 5 places a reduce-scatter or
  // a gather sends 4/5 of 120 bytes. Of the sums of both products and of the gradients in front of
  // them both halves stay, but the last sum is one in forward, and its gradient is put together.
  const auto bytes = [](bool sequence, int64_t rows) {
    const Graph graph = layers(kNormed);
    return all_traffic(shard(graph, 5, 0, {}, {}, sequence).graph, 5, rows).bytes;
  };
  EXPECT_EQ(bytes(false, 1) - bytes(false, 0), 8 * 96);
  EXPECT_EQ(bytes(true, 1) - bytes(true, 0), 9 * 96);
}

TEST(Shard, ASumThatNothingGoesOnWithInPartsIsNotCut) {
  // The maximum over the sequence needs all of it.
  const ShardedGraph first = along_sequence(layers(R"(  node top = aten::amax(%y, [1], true) -> %t
    result t: float32[B, 1, 6] apart(0) grad
  node wide = aten::expand(%t, [B, 5, 6], false) -> %n
    result n: float32[B, 5, 6] apart(0) grad shares %t)"),
                                            2)[0];
  EXPECT_EQ(operators(first.graph),
            "@sum_gradient linear linear @sum add amax expand @sum_gradient linear linear "
            "@reduce_scatter gelu @all_gather");
}

TEST(Shard, PlacesInFrontOfOthersAreASequenceOfItsOwn) {
  // A class token: 1 and 4 places, of which nobody is cut alone.
  const ShardedGraph second =
      along_sequence(layers(R"(  node first = aten::slice.Tensor(%y, 1, 1, 5, 1) -> %tail
    result tail: float32[B, 4, 6] apart(0) grad shares %y
  node token = aten::slice.Tensor(%y, 1, 0, 1, 1) -> %token
    result token: float32[B, 1, 6] apart(0) grad shares %y
  node joined = aten::cat({%token, %tail}, 1) -> %j
    result j: float32[B, 5, 6] apart(0) grad
  node ln = aten::layer_norm(%j, [6], %norm, none, 0.00001, true) -> %n
    result n: float32[B, 5, 6] apart(0) grad)"),
                     2)[1];
  EXPECT_EQ(second.along_sequence, (std::set<std::string>{"y2", "z"}));
}

TEST(Shard, ProductsOfFlattenedTokensHaveTheirSequence) {
  const Graph graph = parse(R"(graph gpt2(%x) -> (%z)
  input x: float32[B, 4, 6] apart(0) grad
  parameter up: float32[6, 10] grad
  parameter up_bias: float32[10] grad
  parameter down: float32[10, 6] grad
  parameter down_bias: float32[6] grad
  node v1 = aten::view(%x, [4*B, 6]) -> %x1
    result x1: float32[4*B, 6] apart(0, inner=4) grad shares %x
  node p1 = aten::addmm(%up_bias, %x1, %up, 1, 1) -> %h1
    result h1: float32[4*B, 10] apart(0, inner=4) grad
  node v2 = aten::view(%h1, [B, 4, 10]) -> %h
    result h: float32[B, 4, 10] apart(0) grad shares %h1
  node act = aten::gelu(%h, "none") -> %a
    result a: float32[B, 4, 10] apart(0) grad
  node v3 = aten::view(%a, [4*B, 10]) -> %a1
    result a1: float32[4*B, 10] apart(0, inner=4) grad shares %a
  node p2 = aten::addmm(%down_bias, %a1, %down, 1, 1) -> %y1
    result y1: float32[4*B, 6] apart(0, inner=4) grad
  node v4 = aten::view(%y1, [B, 4, 6]) -> %y
    result y: float32[B, 4, 6] apart(0) grad shares %y1
  node sum = aten::add.Tensor(%y, %x, 1) -> %z
    result z: float32[B, 4, 6] apart(0) grad
)");
  const ShardedGraph first = along_sequence(graph, 2)[0];
  EXPECT_EQ(operators(first.graph),
            "alias @sum_gradient matmul add gelu alias matmul @reduce_scatter @sum_gradient add "
            "@slice add @all_gather");
}

}  // namespace
}  // namespace rannc::ir
