#include "rannc/ir/contents.h"

#include <gtest/gtest.h>

#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

const Graph kGraph = parse(R"(graph net(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  parameter head.weight: float32[4, 4] grad also tied.weight
  buffer head.calls: int64[]
  constant three: int64[] #0
  node first = aten::linear(%x, %head.weight, none) -> %a in body.block
    result a: bfloat16[B, 4]
  node view = aten::select.int(%head.calls, 0, 0) -> %v in body
    result v: int64[] shares %head.calls
  node count = aten::add_.Tensor(%v, 1, 1) -> %c writes %v in body
    result c: int64[] shares %head.calls
  node both = aten::aminmax(%a, none, false) -> %low, %high in body.block
    result low: float32[B, 4]
    result high: float32[B, 4]
  node root = aten::add.Tensor(%low, %high, 1) -> %y whole_batch
    result y: float32[B, 4]
)");

NodeId node(const std::string& name) { return *kGraph.find_node(name); }

TEST(Contents, DtypesAreThoseOfAllValues) {
  EXPECT_EQ(dtypes(kGraph), (std::set{DType::float32, DType::bfloat16, DType::int64}));
}

TEST(Contents, AGraphRequiresGradWhereSomeValueDoes) {
  EXPECT_TRUE(requires_grad(kGraph));
  EXPECT_FALSE(requires_grad(parse("graph none(%x) -> (%x)\n  input x: float32[B]\n")));
}

TEST(Contents, StateIsWhatTheModelHolds) {
  EXPECT_EQ(state_names(kGraph), (std::vector<std::string>{"head.weight", "head.calls"}));
  EXPECT_EQ(held_values(kGraph), (std::vector<ValueId>{{1}, {2}, {3}}));
}

TEST(Contents, AWriteToAViewIsOneToWhatHoldsItsMemory) {
  EXPECT_EQ(written_names(kGraph), (std::set<std::string>{"head.calls"}));
}

TEST(Contents, ReadersAreFoundByEveryName) {
  EXPECT_EQ(first_reader(kGraph, "tied.weight"), node("first"));
  EXPECT_EQ(first_reader(kGraph, "head.calls"), node("view"));
  EXPECT_EQ(first_reader(kGraph, "y"), std::nullopt);
}

TEST(Contents, AModuleEndsWithItsLastSingleResult) {
  // `both` is the last node of body.block, but has two results; the root has no path.
  EXPECT_EQ(module_ends(kGraph), (std::map<std::string, NodeId>{{"body", node("count")},
                                                                {"body.block", node("first")}}));
}

TEST(Contents, MarkedNodesAreFound) {
  EXPECT_EQ(whole_batch_nodes(kGraph), std::vector{node("root")});
  EXPECT_TRUE(by_share_nodes(kGraph).empty());
}

}  // namespace
}  // namespace rannc::ir
