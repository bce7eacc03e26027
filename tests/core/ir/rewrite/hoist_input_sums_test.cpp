#include <gtest/gtest.h>

#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

/// The text forms of all parts, after exact_means(); each part verifies.
std::string parts_of(const std::string& text, bool by_share = false) {
  const HoistedSums parts = hoist_input_sums(exact_means(parse(text)), by_share);
  std::string printed;
  for (const Graph& prelude : parts.preludes) {
    verify(prelude);
    printed += print(prelude);
  }
  verify(parts.main);
  EXPECT_EQ(parts.main, infer_rows(parts.main));
  return printed + print(parts.main);
}

/// Rows of the only output of the main part, as the text form shows them.
std::string loss_rows(const std::string& text, bool by_share = false) {
  const HoistedSums parts = hoist_input_sums(exact_means(parse(text)), by_share);
  verify(parts.main);
  return std::string(name(parts.main[parts.main.outputs.front()].rows.kind));
}

size_t rounds(const std::string& text) {
  return hoist_input_sums(exact_means(parse(text))).preludes.size();
}

constexpr const char* kInputs = R"(
  input l: float32[B, 4] apart(0)
  input m: float32[B, 4] apart(0)
  input n: float32[B] apart(0)
  parameter w: float32[4] grad
  parameter u: float32[] grad
  buffer c: float32[]
  node l2 = aten::mul.Tensor(%l, %w) -> %l2
    result l2: float32[B, 4] apart(0) grad
)";

/// A model that returns %loss, computed by `nodes` from %l2 (B, 4) with gradient, the arguments %m
/// (B, 4) and %n (B), the parameter %u and the buffer %c.
std::string model(const std::string& nodes) {
  return std::string("graph test(%l, %m, %n) -> (%loss)") + kInputs + nodes;
}

TEST(ExactMeans, CrossEntropyIsASumOverACount) {
  EXPECT_EQ(parts_of(R"(graph test(%x, %t) -> (%loss)
  input x: float32[B, 10] apart(0) grad
  input t: int64[B] apart(0)
  node loss = aten::cross_entropy_loss(%x, %t, none, 1, -100, 0.1) -> %loss in head at "m.py":7
    result loss: float32[] mean grad
)"),
            R"(graph test(%x, %t) -> (%loss.count.local)
  input x: float32[B, 10] apart(0) grad
  input t: int64[B] apart(0)
  node loss.kept = aten::ne.Scalar(%t, -100) -> %loss.kept in head at "m.py":7
    result loss.kept: boolean[B] apart(0)
  node loss.count = aten::sum(%loss.kept, none) -> %loss.count.local in head at "m.py":7
    result loss.count.local: int64[] sum
graph test(%x, %t, %loss.count) -> (%loss)
  input x: float32[B, 10] apart(0) grad
  input t: int64[B] apart(0)
  input loss.count: int64[]
  node loss.divisor = aten::to.dtype(%loss.count, 6, false, false, none) -> %loss.divisor in head at "m.py":7
    result loss.divisor: float32[]
  node loss.sum = aten::cross_entropy_loss(%x, %t, none, 2, -100, 0.1) -> %loss.sum in head at "m.py":7
    result loss.sum: float32[] sum grad
  node loss = aten::div.Tensor(%loss.sum, %loss.divisor) -> %loss in head at "m.py":7
    result loss: float32[] sum grad
)");
}

TEST(ExactMeans, ClassWeightsAreSummed) {
  EXPECT_EQ(parts_of(R"(graph test(%x, %t) -> (%loss)
  input x: float32[B, 10] apart(0) grad
  input t: int64[B] apart(0)
  buffer w: float32[10]
  node loss = aten::nll_loss_nd(%x, %t, %w, 1, 3) -> %loss
    result loss: float32[] mixed grad
)"),
            R"(graph test(%x, %t) -> (%loss.count.local)
  input x: float32[B, 10] apart(0) grad
  input t: int64[B] apart(0)
  buffer w: float32[10]
  node loss.ignored = aten::eq.Scalar(%t, 3) -> %loss.ignored
    result loss.ignored: boolean[B] apart(0)
  node loss.classes = aten::masked_fill.Scalar(%t, %loss.ignored, 0) -> %loss.classes
    result loss.classes: int64[B] apart(0)
  node loss.weights = aten::index.Tensor(%w, {%loss.classes}) -> %loss.weights
    result loss.weights: float32[B] apart(0)
  node loss.kept = aten::masked_fill.Scalar(%loss.weights, %loss.ignored, 0) -> %loss.kept
    result loss.kept: float32[B] apart(0)
  node loss.count = aten::sum(%loss.kept, 6) -> %loss.count.local
    result loss.count.local: float32[] sum
graph test(%x, %t, %loss.count) -> (%loss)
  input x: float32[B, 10] apart(0) grad
  input t: int64[B] apart(0)
  buffer w: float32[10]
  input loss.count: float32[]
  node loss.sum = aten::nll_loss_nd(%x, %t, %w, 2, 3) -> %loss.sum
    result loss.sum: float32[] sum grad
  node loss = aten::div.Tensor(%loss.sum, %loss.count) -> %loss
    result loss: float32[] sum grad
)");
}

TEST(ExactMeans, SixteenBitsAreSummedInThirtyTwo) {
  const Graph graph = exact_means(parse(R"(graph test(%x, %t) -> (%loss)
  input x: float16[B, 10] apart(0) grad
  input t: int64[B] apart(0)
  node loss = aten::cross_entropy_loss(%x, %t, none, 1, -100, 0.0) -> %loss
    result loss: float16[] mean grad
)"));
  const std::string text = print(infer_rows(graph));
  EXPECT_NE(text.find("aten::cross_entropy_loss(%x, %t, none, 0, -100, 0.0) -> %loss.losses"),
            std::string::npos);
  EXPECT_NE(text.find("loss.sum: float32[] sum grad"), std::string::npos);
  EXPECT_NE(text.find("aten::to.dtype(%loss.mean, 5, false, false, none) -> %loss"),
            std::string::npos);
}

TEST(ExactMeans, OtherLossesStay) {
  const Graph graph = parse(R"(graph test(%x, %p, %t) -> (%a, %b)
  input x: float32[B, 10] apart(0) grad
  input p: float32[B, 10] apart(0)
  input t: int64[B] apart(0)
  node a = aten::cross_entropy_loss(%x, %p, none, 1, -100, 0.0) -> %a
    result a: float32[] mean grad
  node b = aten::cross_entropy_loss(%x, %t, none, 2, -100, 0.0) -> %b
    result b: float32[] sum grad
)");
  EXPECT_EQ(exact_means(graph), graph);
}

TEST(HoistInputSums, AGraphWithoutThemIsTheMainPart) {
  const std::string text = model(R"(
  node loss = aten::mean(%l2, none) -> %loss
    result loss: float32[] mean grad
)");
  const HoistedSums parts = hoist_input_sums(parse(text));
  EXPECT_TRUE(parts.preludes.empty());
  EXPECT_EQ(parts.main, parse(text));
}

TEST(HoistInputSums, ASumThatMixesNothingStays) {
  // pred.sum() + x.sum() is a sum; without the rows of x it would be none.
  const std::string text = model(R"(
  node a = aten::sum(%l2, none) -> %a
    result a: float32[] sum grad
  node b = aten::sum(%m, none) -> %b
    result b: float32[] sum
  node loss = aten::add.Tensor(%a, %b, 1) -> %loss
    result loss: float32[] sum grad
)");
  EXPECT_EQ(rounds(text), 0U);
  EXPECT_EQ(loss_rows(text), "sum");
}

TEST(HoistInputSums, AMaskedMeanIsASum) {
  EXPECT_EQ(parts_of(model(R"(
  node lm = aten::mul.Tensor(%l2, %m) -> %lm
    result lm: float32[B, 4] apart(0) grad
  node s = aten::sum(%lm, none) -> %s
    result s: float32[] sum grad
  node k = aten::sum(%m, none) -> %k
    result k: float32[] sum
  node k1 = aten::clamp(%k, 1, none) -> %k1
    result k1: float32[] mixed
  node loss = aten::div.Tensor(%s, %k1) -> %loss
    result loss: float32[] mixed grad
)")),
            R"(graph test(%l, %m, %n) -> (%k.local)
  input l: float32[B, 4] apart(0)
  input m: float32[B, 4] apart(0)
  input n: float32[B] apart(0)
  node k = aten::sum(%m, none) -> %k.local
    result k.local: float32[] sum
graph test(%l, %m, %n, %k) -> (%loss)
  input l: float32[B, 4] apart(0)
  input m: float32[B, 4] apart(0)
  input n: float32[B] apart(0)
  parameter w: float32[4] grad
  parameter u: float32[] grad
  buffer c: float32[]
  input k: float32[]
  node l2 = aten::mul.Tensor(%l, %w) -> %l2
    result l2: float32[B, 4] apart(0) grad
  node lm = aten::mul.Tensor(%l2, %m) -> %lm
    result lm: float32[B, 4] apart(0) grad
  node s = aten::sum(%lm, none) -> %s
    result s: float32[] sum grad
  node k1 = aten::clamp(%k, 1, none) -> %k1
    result k1: float32[]
  node loss = aten::div.Tensor(%s, %k1) -> %loss
    result loss: float32[] sum grad
)");
}

/// loss = (l2 * m).sum() / count, where `count` is made by `nodes`.
std::string masked(const std::string& count) {
  return model(R"(
  node lm = aten::mul.Tensor(%l2, %m) -> %lm
    result lm: float32[B, 4] apart(0) grad
  node s = aten::sum(%lm, none) -> %s
    result s: float32[] sum grad
)" + count + R"(
  node loss = aten::div.Tensor(%s, %count) -> %loss
    result loss: float32[] mixed grad
)");
}

TEST(HoistInputSums, IntegersAreSummedBeforeTheyAreCast) {
  const std::string text = parts_of(masked(R"(
  node e = aten::ne.Scalar(%m, 0) -> %e
    result e: boolean[B, 4] apart(0)
  node i = aten::sum(%e, none) -> %i
    result i: int64[] sum
  node count = aten::to.dtype(%i, 6, false, false, none) -> %count
    result count: float32[] sum
)"));
  EXPECT_NE(text.find("-> (%i.local)"), std::string::npos) << text;
  EXPECT_NE(text.find("result loss: float32[] sum grad"), std::string::npos) << text;
}

TEST(HoistInputSums, DividedByTheNumberOfRowsItIsAMean) {
  const std::string text = parts_of(masked(R"(
  node i = aten::sum(%m, none) -> %i
    result i: float32[] sum
  node count = aten::div.Scalar(%i, 4*B) -> %count
    result count: float32[] mean
)"));
  EXPECT_NE(text.find("result count.local: float32[] mean"), std::string::npos) << text;
  EXPECT_NE(text.find("result loss: float32[] sum grad"), std::string::npos) << text;
}

TEST(HoistInputSums, WhatIsWrittenInPlaceIsCopiedFirst) {
  const std::string text = parts_of(masked(R"(
  node i = aten::sum(%m, none) -> %i
    result i: float32[] sum
  node count = aten::clamp_(%i, 1, none) -> %count writes %i
    result count: float32[] mixed shares %i
)"));
  EXPECT_NE(text.find("node i.clone = aten::clone(%i.global, none) -> %i"), std::string::npos)
      << text;
  EXPECT_NE(text.find("result loss: float32[] sum grad"), std::string::npos) << text;
}

TEST(HoistInputSums, AViewIsTakenWhereItsStorageIsMade) {
  const std::string text = parts_of(masked(R"(
  node i = aten::sum(%m, none) -> %i
    result i: float32[] sum
  node count = aten::detach(%i) -> %count
    result count: float32[] sum shares %i
)"));
  EXPECT_NE(text.find("-> (%i.local)"), std::string::npos) << text;
  EXPECT_NE(text.find("result count: float32[] shares %i"), std::string::npos) << text;
}

TEST(HoistInputSums, BuffersMayTakePartAndParametersNot) {
  const auto count = [](const std::string& of) {
    return masked("node mm = aten::mul.Tensor(%m, %" + of + R"() -> %mm
    result mm: float32[B, 4] apart(0)
  node count = aten::sum(%mm, none) -> %count
    result count: float32[] sum
)");
  };
  EXPECT_EQ(loss_rows(count("c")), "sum");
  EXPECT_EQ(loss_rows(count("u")), "mixed");
}

TEST(HoistInputSums, ALossThatBroadcastsAnArgumentLeavesItToOthers) {
  // mse_loss(l2, m) broadcasts both; m.sum() divided by what was taken from all rows nevertheless.
  // It was not hoisted, and each share divided by its own sum, with a warning.
  const auto both = [](const std::string& shape) {
    return R"(
  node wide = aten::unsqueeze(%l2, 0) -> %o
    result o: float32[1, B, 4] apart(1) grad shares %l2
  node all = aten::broadcast_tensors({)" +
           (shape == "[B, 4]" ? std::string("%l2") : "%o") + R"(, %m}) -> %p, %q
    result p: float32)" +
           shape + R"( grad shares %l2
    result q: float32)" +
           shape + R"( shares %m
  node error = aten::mse_loss(%p, %q, 2) -> %error
    result error: float32[] sum grad
)";
  };
  EXPECT_EQ(loss_rows(model(both("[1, B, 4]") + R"(
  node kept = aten::sum(%m, none) -> %kept
    result kept: float32[] sum
  node loss = aten::div.Tensor(%error, %kept) -> %loss
    result loss: float32[] sum grad
)")),
            "sum");
  // Of one shape, q is m.
  EXPECT_EQ(loss_rows(model(both("[B, 4]") + R"(
  node kept = aten::sum(%q, none) -> %kept
    result kept: float32[] sum
  node loss = aten::div.Tensor(%error, %kept) -> %loss
    result loss: float32[] sum grad
)")),
            "sum");
  // Otherwise what is made beside l2 cannot come before it.
  EXPECT_EQ(loss_rows(model(both("[1, B, 4]") + R"(
  node kept = aten::sum(%q, none) -> %kept
    result kept: float32[] sum
  node loss = aten::div.Tensor(%error, %kept) -> %loss
    result loss: float32[] sum grad
)")),
            "mixed");
}

TEST(HoistInputSums, RandomNumbersAndWritesToStateMayNot) {
  EXPECT_EQ(loss_rows(masked(R"(
  node mm = aten::dropout(%m, 0.5, true) -> %mm
    result mm: float32[B, 4] apart(0)
  node count = aten::sum(%mm, none) -> %count
    result count: float32[] sum
)")),
            "mixed");
  // It would be added once per micro-batch.
  EXPECT_EQ(loss_rows(masked(R"(
  node count = aten::sum(%m, none) -> %count
    result count: float32[] sum
  node seen = aten::add_.Tensor(%c, %count, 1) -> %seen writes %c
    result seen: float32[] mixed shares %c
)")),
            "mixed");
}

TEST(HoistInputSums, SumsOfSumsTakeARoundEach) {
  // d = m - m.mean(); loss = (l2 * m).sum() / (d * d).sum()
  const std::string text = masked(R"(
  node mu = aten::mean(%m, none) -> %mu
    result mu: float32[] mean
  node d = aten::sub.Tensor(%m, %mu, 1) -> %d
    result d: float32[B, 4] mixed
  node dd = aten::mul.Tensor(%d, %d) -> %dd
    result dd: float32[B, 4] mixed
  node count = aten::sum(%dd, none) -> %count
    result count: float32[] mixed
)");
  EXPECT_EQ(rounds(text), 2U);
  EXPECT_EQ(loss_rows(text), "sum");
}

TEST(HoistInputSums, ASumOfHoistedOnesIsTakenBack) {
  // a = m.sum(), b = n.sum(), both = a + b: the division needs `both`, the logarithm `a`, and
  // then `b`; in the end `both` is not summed over the batch any more.
  const std::string text = parts_of(model(R"(
  node s = aten::sum(%l2, none) -> %s
    result s: float32[] sum grad
  node a = aten::sum(%m, none) -> %a
    result a: float32[] sum
  node b = aten::sum(%n, none) -> %b
    result b: float32[] sum
  node both = aten::add.Tensor(%a, %b, 1) -> %both
    result both: float32[] sum
  node q = aten::div.Tensor(%s, %both) -> %q
    result q: float32[] mixed grad
  node g = aten::log(%a) -> %g
    result g: float32[] mixed
  node loss = aten::mul.Tensor(%q, %g) -> %loss
    result loss: float32[] mixed grad
)"));
  EXPECT_NE(text.find("-> (%a.local, %b.local)"), std::string::npos) << text;
  EXPECT_NE(text.find("node both = aten::add.Tensor(%a, %b, 1) -> %both"), std::string::npos)
      << text;
  EXPECT_NE(text.find("result loss: float32[] sum grad"), std::string::npos) << text;
}

TEST(HoistInputSums, MeansAndConstantsAreAddedToASumByTheirShare) {
  const std::string sum = R"(
  node s = aten::sum(%l2, none) -> %s
    result s: float32[] sum grad
  node e = aten::mean(%l2, none) -> %e
    result e: float32[] mean grad
)";
  for (const char* addition :
       {"add.Tensor(%s, %e, 1)", "add.Tensor(%e, %s, 1)", "sub.Tensor(%s, %u, 1)",
        "add.Scalar(%s, 0.5, 1)", "where.self(%c, %s, %u)", "stack({%s, %e, %u}, 0)",
        "where.ScalarSelf(%c, 0.5, %s)", "rsub.Scalar(%s, 1, 1)", "add_.Tensor(%s, %u, 1)"}) {
    const std::string writes = std::string(addition).starts_with("add_") ? " writes %s" : "";
    const std::string dims = std::string(addition).starts_with("stack") ? "[3]" : "[]";
    const std::string shares = writes.empty() ? "" : " shares %s";
    const std::string text =
        model(sum + "  node loss = aten::" + addition + " -> %loss" + writes +
              "\n    result loss: float32" + dims + " mixed grad" + shares + "\n");
    EXPECT_EQ(loss_rows(text), "sum") << addition;
    EXPECT_EQ(rounds(text), 1U) << addition;
  }
}

TEST(HoistInputSums, WhatIsNotLinearIsMarkedWhenAsked) {
  const std::string text = model(R"(
  node e = aten::mean(%l2, none) -> %e
    result e: float32[] mean grad
  node loss = aten::sqrt(%e) -> %loss
    result loss: float32[] mixed grad
)");
  EXPECT_EQ(loss_rows(text), "mixed");
  EXPECT_EQ(loss_rows(text, /*by_share=*/true), "mean");
  const Graph main = hoist_input_sums(parse(text), true).main;
  EXPECT_TRUE(main.nodes.back().by_share);
  EXPECT_TRUE(row_mixes(main).empty());
  EXPECT_EQ(parse(print(main)), main);
}

TEST(HoistInputSums, OfASumTheWholeIsEstimated) {
  const std::string text = model(R"(
  node e = aten::sum(%l2, none) -> %e
    result e: float32[] sum grad
  node loss = aten::log(%e) -> %loss
    result loss: float32[] mixed grad
)");
  const std::string parts = parts_of(text, true);
  EXPECT_NE(parts.find("aten::mul.Tensor(%e, %loss.rows)"), std::string::npos) << parts;
  EXPECT_NE(parts.find("aten::div.Scalar(%loss.times, B)"), std::string::npos) << parts;
  EXPECT_NE(parts.find("aten::log(%loss.estimate) -> %loss by_share"), std::string::npos) << parts;
  EXPECT_NE(parts.find("result loss: float32[] mean grad"), std::string::npos) << parts;
}

TEST(HoistInputSums, WhereRowsInteractNothingIsMarked) {
  const std::string text = model(R"(
  node a = aten::mean.dim(%l2, [0], true) -> %a
    result a: float32[1, 4] mean grad
  node d = aten::sub.Tensor(%l2, %a, 1) -> %d
    result d: float32[B, 4] mixed grad
  node e = aten::mean(%d, none) -> %e
    result e: float32[] mixed grad
  node f = aten::mean(%l2, none) -> %f
    result f: float32[] mean grad
  node g = aten::sqrt(%f) -> %g
    result g: float32[] mixed grad
  node loss = aten::add.Tensor(%e, %g, 1) -> %loss
    result loss: float32[] mixed grad
)");
  const Graph main = hoist_input_sums(parse(text), true).main;
  EXPECT_EQ(main, infer_rows(parse(text)));
}

}  // namespace
}  // namespace rannc::ir
