#include "rannc/cost/cost_table.h"

#include <gtest/gtest.h>

#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

const CostTable kTable{{1, 4}, {{{1, 2, 3, 4}, {5, 6, 7, 8}}, {{}, {}}}};

TEST(CostTableFile, ReadsBackWhatItWrites) {
  EXPECT_EQ(cost_table_from_json(to_json(kTable)), kTable);
  EXPECT_EQ(to_json(kTable),
            R"({"format": "rannc-cost-table", "version": 1, "rows": [1, 4],
 "nodes": [
  {"forward_ns": [1, 5], "backward_ns": [2, 6], "saved_bytes": [3, 7], "workspace_bytes": [4, 8]},
  {"forward_ns": [0, 0], "backward_ns": [0, 0], "saved_bytes": [0, 0], "workspace_bytes": [0, 0]}]}
)");
}

TEST(CostTableFile, HasTimesOfTheHostWhereThereAreSome) {
  CostTable table = kTable;
  table.node[0][1].backward_host_ns = 9;
  const std::string text = to_json(table);
  EXPECT_EQ(cost_table_from_json(text), table);
  EXPECT_NE(text.find(R"("workspace_bytes": [4, 8], "backward_host_ns": [0, 9]})"),
            std::string::npos);
}

TEST(CostTableFile, NamesWhatIsWrong) {
  std::string text = to_json(kTable);
  text.replace(text.find("[2, 6]"), 6, "[2, -6]");
  try {
    (void)cost_table_from_json(text);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "cost table: $.nodes[0].backward_ns[1]: expected an integer of at least 0, found -6");
  }
}

/// Two equal linears, one of another width, one that reads its input twice.
const ir::Graph kGraph = ir::parse(R"(graph "g"(%x) -> (%d)
  input x: float32[B, 4] apart(0)
  parameter w: float32[4, 4] grad
  parameter v: float32[4, 4] grad
  parameter u: float32[8, 4] grad
  node one = aten::linear(%x, %w, none) -> %a
    result a: float32[B, 4] apart(0) grad
  node two = aten::linear(%x, %v, none) -> %b
    result b: float32[B, 4] apart(0) grad
  node three = aten::linear(%x, %u, none) -> %c
    result c: float32[B, 8] apart(0) grad
  node four = aten::mul.Tensor(%a, %b) -> %p
    result p: float32[B, 4] apart(0) grad
  node five = aten::mul.Tensor(%a, %a) -> %d
    result d: float32[B, 4] apart(0) grad
  node six = aten::linear(%x, %w, none) -> %e no_grad
    result e: float32[B, 4] apart(0)
)");

TEST(CostTableVerify, NamesTheNodeAndTheNumber) {
  CostTable table{{1}, std::vector<std::vector<NodeCost>>(kGraph.nodes.size(), {NodeCost{}})};
  EXPECT_NO_THROW(verify(table, kGraph));
  table.node[1][0].saved_bytes = -5;
  try {
    verify(table, kGraph);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "cost table: node 'two': saved_bytes is -5, below 0");
  }
}

TEST(Signature, IsEqualForNodesThatCostTheSame) {
  EXPECT_EQ(signature(kGraph, {0}), signature(kGraph, {1}));
  EXPECT_NE(signature(kGraph, {0}), signature(kGraph, {2}));
}

TEST(Signature, TellsTheSameOperandTwiceAndTheGradModeApart) {
  EXPECT_NE(signature(kGraph, {3}), signature(kGraph, {4}));
  EXPECT_NE(signature(kGraph, {0}), signature(kGraph, {5}));
}

}  // namespace
}  // namespace rannc::cost
