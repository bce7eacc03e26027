#include <gtest/gtest.h>

#include "rannc/ir/draws.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

TEST(WithoutDropout, EveryDropProbabilityIsZero) {
  const Graph graph = without_dropout(parse(R"(graph drops(%x, %w) -> (%d)
  input x: float32[4, B, 4] apart(1)
  parameter w: float32[4, 4]
  node a = aten::dropout_(%x, 0.5, true) -> %a writes %x
    result a: float32[4, B, 4] shares %x
  node b = aten::scaled_dot_product_attention(%a, %a, %a, none, 0.1) -> %b
    result b: float32[4, B, 4]
  node c = aten::lstm.input(%b, {%w}, {%w}, true, 2, 0.3, true, false, true) -> %c
    result c: float32[4, B, 4]
  node d = aten::lstm.data(%c, %x, {%w}, {%w}, true, 2, 0.3, true, false) -> %d
    result d: float32[4, B, 4]
)"));
  for (const Node& node : graph.nodes) EXPECT_FALSE(draws(node)) << node.name;
  EXPECT_EQ(std::get<double>(graph.nodes[0].inputs[1]), 0);
  EXPECT_EQ(std::get<AffineInt>(graph.nodes[3].inputs[5]), (AffineInt{2, 0}));
}

TEST(WithoutDropout, OtherCallsStay) {
  // Left out, a probability is 0; what others call dropout may take anything.
  const Graph graph = parse(R"(graph others(%x) -> (%c)
  input x: float32[4, B, 4] apart(1)
  node a = aten::scaled_dot_product_attention(%x, %x, %x) -> %a
    result a: float32[4, B, 4]
  node b = mine::dropout(%a, 0.5, true) -> %b
    result b: float32[4, B, 4]
  node c = aten::rrelu(%b, 0.1, 0.3, true) -> %c
    result c: float32[4, B, 4]
)");
  EXPECT_EQ(without_dropout(graph), graph);
}

}  // namespace
}  // namespace rannc::ir
