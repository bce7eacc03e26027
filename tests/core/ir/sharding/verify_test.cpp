#include <gtest/gtest.h>

#include <functional>

#include "rannc/ir/shard.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

/// x @ up @ down with a bias behind each, and a residual.
const Graph& block() {
  static const Graph graph = parse(R"(graph block(%x) -> (%z)
  input x: float32[B, 6] apart(0) grad
  parameter up: float32[10, 6] grad
  parameter up_bias: float32[10] grad
  parameter slope: float32[1] grad
  parameter down: float32[6, 10] grad
  node first = aten::linear(%x, %up, %up_bias) -> %h
    result h: float32[B, 10] apart(0) grad
  node scale = aten::mul.Tensor(%h, %slope) -> %s
    result s: float32[B, 10] apart(0) grad
  node second = aten::linear(%s, %down, none) -> %y
    result y: float32[B, 6] apart(0) grad
  node residual = aten::add.Tensor(%x, %y, 1) -> %z
    result z: float32[B, 6] apart(0) grad
)");
  return graph;
}

std::vector<ShardedGraph> places() { return {shard(block(), 2, 0), shard(block(), 2, 1)}; }

/// What verify_shard() says after `change` was made to the graphs of all places.
std::string refusal(const std::function<void(ShardedGraph&)>& change) {
  std::vector<ShardedGraph> changed = places();
  for (ShardedGraph& place : changed) change(place);
  try {
    verify_shard(block(), changed);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

void expect_in(const std::string& message, const std::string& words) {
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

Node& node(ShardedGraph& place, const std::string& op) {
  for (Node& each : place.graph.nodes) {
    if (each.op == op) return each;
  }
  throw InternalError("there is no " + op);
}

/// The collective becomes a node that does nothing.
auto without(const std::string& op) {
  return [op](ShardedGraph& place) { node(place, op).op = "aten::alias"; };
}

TEST(VerifyShard, TakesWhatShardMakes) {
  EXPECT_EQ(refusal([](ShardedGraph&) {}), "");
}

TEST(VerifyShard, RefusesAPartialValueThatIsNotSummed) {
  // x + y: each place would add x to its part of y.
  expect_in(refusal(without("group::sum")), "otherwise than linearly");
}

TEST(VerifyShard, RefusesAPartialGradientThatIsNotSummed) {
  expect_in(refusal(without("group::sum_gradient")), "partial gradient");
  expect_in(refusal([](ShardedGraph& place) {
              for (Node& each : place.graph.nodes) {
                const bool of_slope =
                    each.op == "group::sum_gradient" && each.name.starts_with("scale");
                if (of_slope) each.op = "aten::alias";
              }
            }),
            "'slope' of a sharded graph has a partial gradient that nothing sums");
}

TEST(VerifyShard, RefusesAWholeGradientThatIsSummed) {
  expect_in(
      refusal([](ShardedGraph& place) { node(place, "group::sum").op = "group::sum_gradient"; }),
      "takes parts as the whole");
}

TEST(VerifyShard, RefusesAPartBesideAWhole) {
  // The bias of the first product is whole, its weight is cut.
  const auto change = [](ShardedGraph& place) {
    std::erase_if(place.parts, [](const Part& part) { return part.name == "up_bias"; });
  };
  expect_in(refusal(change), "adds a whole bias to a part");
}

TEST(VerifyShard, RefusesAnOperatorThatNeedsTheWhole) {
  const auto change = [](ShardedGraph& place) {
    node(place, "aten::mul.Tensor").op = "aten::sort";
  };
  expect_in(refusal(change), "needs the whole of what is cut (aten::sort)");
}

TEST(VerifyShard, RefusesPlacesThatRunOtherOperators) {
  std::vector<ShardedGraph> changed = places();
  node(changed[1], "group::sum_gradient").op = "aten::alias";
  EXPECT_THROW(verify_shard(block(), changed), InternalError);
}

}  // namespace
}  // namespace rannc::ir
