#include <gtest/gtest.h>

#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

Graph inferred(std::string_view text) { return infer_rows(parse(text)); }

const Graph kApart = inferred(R"(graph apart(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  node double = aten::mul.Scalar(%x, 2) -> %y in head at "model.py":3
    result y: float32[B, 4]
)");

const Graph kMixing = inferred(R"(graph centred(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  node mean = aten::mean.dim(%x, [0], false) -> %m in norm at "model.py":7
    result m: float32[4]
  node centre = aten::sub.Tensor(%x, %m, 1) -> %y in norm at "model.py":8
    result y: float32[B, 4]
)");

TEST(Reasons, AreEmptyWhereRowsStayApart) {
  EXPECT_EQ(why_rows_interact(kApart), "");
  EXPECT_EQ(why_rows_may_interact(kApart), "");
  EXPECT_EQ(why_shares_differ(kApart), "");
}

TEST(Reasons, NameTheFirstNodeWhoseRowsInteract) {
  const std::string reason =
      "aten::sub.Tensor uses a mean or sum over the batch together with rows "
      "(module 'norm', model.py:8)";
  EXPECT_EQ(why_rows_interact(kMixing), reason);
  EXPECT_EQ(why_shares_differ(kMixing), reason);
}

TEST(Reasons, NameTheOperatorThatNoRuleKnows) {
  EXPECT_EQ(why_rows_may_interact(inferred(R"(graph unknown(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  node custom = mine::custom(%x) -> %y in head
    result y: float32[B, 4]
)")),
            "it is not known whether mine::custom keeps the rows of the batch apart, and the "
            "self-check did not prove it (module 'head', unknown source)");
}

TEST(Reasons, SharesDifferWhereANodeCountsByItsShare) {
  Graph graph = kApart;
  graph.nodes[0].by_share = true;
  EXPECT_EQ(why_shares_differ(graph),
            "aten::mul.Scalar is not linear in a mean over the batch (module 'head', model.py:3)");
}

TEST(Reasons, SharesDifferWhereBatchNormalisationTakesStatistics) {
  const Graph graph = inferred(R"(graph norm(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  buffer mean: float32[4]
  buffer var: float32[4]
  node norm = aten::batch_norm(%x, none, none, %mean, %var, true, 0.1, 1e-05, false) -> %y writes %mean, %var in norm
    result y: float32[B, 4]
)");
  EXPECT_EQ(why_shares_differ(graph),
            "batch normalisation takes the statistics of its part (module 'norm', unknown source)");
  EXPECT_EQ(why_shares_differ(whole_batch_statistics(graph)),
            "batch normalisation takes the statistics of the whole batch "
            "(module 'norm', unknown source)");
}

}  // namespace
}  // namespace rannc::ir
