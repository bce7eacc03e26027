#include <gtest/gtest.h>

#include "rannc/ir/draws.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

Node node(std::string op, std::vector<Argument> inputs) {
  Node made;
  made.op = std::move(op);
  made.inputs = std::move(inputs);
  return made;
}

TEST(Draws, DependsOnWhatTheOperatorIsGiven) {
  const ValueId x{0};
  const AffineInt one{1, 0};
  const AffineInt two{2, 0};
  EXPECT_TRUE(draws(node("aten::dropout", {x, 0.5, true})));
  EXPECT_FALSE(draws(node("aten::dropout", {x, 0.0, true})));
  EXPECT_FALSE(draws(node("aten::dropout_", {x, 0.5, false})));
  EXPECT_TRUE(draws(node("aten::randn_like", {x})));
  EXPECT_FALSE(draws(node("aten::tanh", {x})));
  EXPECT_FALSE(draws(node("aten::rrelu", {x})));
  EXPECT_FALSE(draws(node("aten::scaled_dot_product_attention", {x, x, x})));
  EXPECT_TRUE(draws(node("aten::scaled_dot_product_attention", {x, x, x, None{}, 0.1})));
  const ValueList none;
  EXPECT_TRUE(draws(node("aten::lstm.input", {x, none, none, true, two, 0.5, true, false, true})));
  EXPECT_FALSE(
      draws(node("aten::lstm.input", {x, none, none, true, two, 0.5, false, false, true})));
  EXPECT_FALSE(draws(node("aten::lstm.input", {x, none, none, true, one, 0.5, true, false, true})));
  EXPECT_FALSE(draws(node("aten::gru.data", {x, x, x, none, true, two, 0.0, true, false})));
  EXPECT_TRUE(draws(node("aten::gru.data", {x, x, x, none, true, two, 0.5, true, false})));
}

TEST(KeyedDraw, IsNoneForWhatDoesNotDrawOrHasNoRule) {
  const ValueId x{0};
  EXPECT_EQ(keyed_draw(node("aten::dropout_", {x, 0.5, true})), Draw::dropout);
  EXPECT_EQ(keyed_draw(node("aten::bernoulli_.float", {x, 0.5, None{}})), Draw::bernoulli);
  EXPECT_EQ(keyed_draw(node("aten::dropout", {x, 0.5, false})), std::nullopt);
  EXPECT_EQ(keyed_draw(node("aten::multinomial", {x, AffineInt{2, 0}})), std::nullopt);
  EXPECT_EQ(keyed_draw(node("mine::dropout", {x, 0.5, true})), std::nullopt);
}

TEST(ExplicitDraws, WritesAttentionAsProductsSoftmaxAndDropout) {
  const Graph graph = explicit_draws(parse(R"(graph test(%q, %k) -> (%y)
  input q: float32[B, 2, 5, 16] apart(0) grad
  input k: float32[B, 2, 7, 16] apart(0)
  node y = aten::scaled_dot_product_attention(%q, %k, %k, none, 0.1, true, none, false) -> %y in m
    result y: float32[B, 2, 5, 16] apart(0) grad
)"));
  verify(graph);
  // 1 / sqrt(16) is a half of each side.
  EXPECT_EQ(print(infer_rows(graph)), R"(graph test(%q, %k) -> (%y)
  input q: float32[B, 2, 5, 16] apart(0) grad
  input k: float32[B, 2, 7, 16] apart(0)
  node y.scaled_query = aten::mul.Scalar(%q, 0.5) -> %y.scaled_query in m
    result y.scaled_query: float32[B, 2, 5, 16] apart(0) grad
  node y.scaled_key = aten::mul.Scalar(%k, 0.5) -> %y.scaled_key in m
    result y.scaled_key: float32[B, 2, 7, 16] apart(0)
  node y.columns = aten::transpose.int(%y.scaled_key, -2, -1) -> %y.columns in m
    result y.columns: float32[B, 2, 16, 7] apart(0) shares %y.scaled_key
  node y.scores = aten::matmul(%y.scaled_query, %y.columns) -> %y.scores in m
    result y.scores: float32[B, 2, 5, 7] apart(0) grad
  node y.ones = aten::ones([5, 7], 11, none, device(cpu), false) -> %y.ones in m
    result y.ones: boolean[5, 7]
  node y.later = aten::triu(%y.ones, 1) -> %y.later in m
    result y.later: boolean[5, 7]
  node y.masked = aten::masked_fill.Scalar(%y.scores, %y.later, -inf) -> %y.masked in m
    result y.masked: float32[B, 2, 5, 7] apart(0) grad
  node y.softmax = aten::softmax.int(%y.masked, -1, none) -> %y.softmax in m
    result y.softmax: float32[B, 2, 5, 7] apart(0) grad
  node y.dropout = aten::dropout(%y.softmax, 0.1, true) -> %y.dropout in m
    result y.dropout: float32[B, 2, 5, 7] apart(0) grad
  node y = aten::matmul(%y.dropout, %k) -> %y in m
    result y: float32[B, 2, 5, 16] apart(0) grad
)");
}

TEST(ExplicitDraws, NamesAnOperatorThatDrawsInAnotherWay) {
  const Graph graph = parse(R"(graph test(%x) -> (%y)
  input x: float32[B, 5] apart(0)
  node pick = aten::multinomial(%x, 2, false, none) -> %y in m.sampler at "model.py":12
    result y: int64[B, 2] apart(0)
)");
  try {
    (void)explicit_draws(graph);
    FAIL() << "multinomial was accepted";
  } catch (const TraceError& error) {
    EXPECT_STREQ(error.what(),
                 "deterministic_dropout: aten::multinomial (node 'pick', module 'm.sampler', "
                 "model.py:12) draws random numbers in a way that cannot be told sample by "
                 "sample.\n  Draw by dropout, bernoulli, rand or randn instead, or leave "
                 "deterministic_dropout off.");
  }
}

}  // namespace
}  // namespace rannc::ir
