#include "rannc/ir/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

using Names = std::vector<std::string>;

SegmentedGraph segmented_by_name(std::string_view text, const std::vector<Names>& segments) {
  Graph graph = infer_rows(parse(text));
  std::vector<std::vector<NodeId>> nodes;
  for (const Names& names : segments) {
    nodes.emplace_back();
    for (const std::string& name : names) nodes.back().push_back(*graph.find_node(name));
  }
  return segmented(std::move(graph), nodes);
}

Names nodes_of(const SegmentedGraph& found, const Segment& segment) {
  Names names;
  for (uint32_t index = segment.begin; index < segment.end; ++index) {
    names.push_back(found.graph.nodes[index].name);
  }
  return names;
}

Names names_of(const SegmentedGraph& found, const std::vector<ValueId>& values) {
  Names names;
  for (ValueId value : values) names.push_back(found.graph[value].name);
  return names;
}

Names inputs_of(const SegmentedGraph& found, const Segment& segment) {
  std::vector<ValueId> values;
  for (const Segment::Input& input : segment.inputs) values.push_back(input.value);
  return names_of(found, values);
}

// Two layers with weights that are cast, a table that both read, and a count of calls.
constexpr std::string_view kLayers = R"(graph layers(%x) -> (%z)
  input x: float32[B, 4] apart(0)
  parameter v: float32[4, 4]
  parameter w: float32[4, 4]
  buffer count: int64[]
  constant steps: float32[4] #0
  node table = aten::sin(%steps) -> %t
    result t: float32[4]
  node cast_v = aten::to.dtype(%v, 15, false, false, none) -> %v16
    result v16: bfloat16[4, 4]
  node one = aten::linear(%x, %v16, none) -> %a
    result a: float32[B, 4]
  node add = aten::add.Tensor(%a, %t, 1) -> %b
    result b: float32[B, 4]
  node step = aten::add_.Tensor(%count, 1, 1) -> %c writes %count
    result c: int64[] shares %count
  node cast_w = aten::to.dtype(%w, 15, false, false, none) -> %w16
    result w16: bfloat16[4, 4]
  node two = aten::linear(%b, %w16, none) -> %y
    result y: float32[B, 4]
  node again = aten::add.Tensor(%y, %t, 1) -> %z
    result z: float32[B, 4]
)";

TEST(Segments, HaveWhatOnlyTheyUseAndTakeTheRest) {
  const SegmentedGraph found = segmented_by_name(kLayers, {{"one", "add"}, {"two", "again"}});
  ASSERT_EQ(found.segments.size(), 2u);
  const auto& [first, second] = std::tie(found.segments[0], found.segments[1]);
  // The cast of each weight runs again with its layer; the table, which both read, runs once.
  EXPECT_EQ(nodes_of(found, first), (Names{"cast_v", "one", "add"}));
  EXPECT_EQ(inputs_of(found, first), (Names{"x", "t"}));
  EXPECT_EQ(names_of(found, first.outputs), (Names{"b"}));
  EXPECT_EQ(nodes_of(found, second), (Names{"cast_w", "two", "again"}));
  EXPECT_EQ(inputs_of(found, second), (Names{"t", "b"}));
  EXPECT_EQ(names_of(found, second.outputs), (Names{"z"}));
  ASSERT_EQ(first.state.size(), 1u);
  EXPECT_EQ(found.graph[first.state[0].value].name, "v");
  EXPECT_FALSE(first.state[0].is_shared);
  EXPECT_FALSE(first.draws);
}

TEST(Segments, LetWritesOfStateHappenWhereTheyDo) {
  const SegmentedGraph found = segmented_by_name(kLayers, {{"one", "add", "two", "again"}});
  // The count is between its nodes, so the segment has it, and finds it as it was.
  EXPECT_EQ(nodes_of(found, found.segments[0]),
            (Names{"table", "cast_v", "one", "add", "step", "cast_w", "two", "again"}));
  const std::vector<Segment::State>& state = found.segments[0].state;
  const auto count = std::ranges::find_if(
      state, [&](const auto& each) { return found.graph[each.value].name == "count"; });
  ASSERT_NE(count, state.end());
  EXPECT_TRUE(count->is_written);
}

TEST(Segments, OfAllNodesAreTheGraphAsItWas) {
  const Graph graph = infer_rows(parse(kLayers));
  const SegmentedGraph found = as_one_segment(graph);
  EXPECT_EQ(found.graph, graph);
  ASSERT_EQ(found.segments.size(), 1u);
  EXPECT_EQ(found.segments[0].end, graph.nodes.size());
  EXPECT_EQ(inputs_of(found, found.segments[0]), (Names{"x"}));
}

TEST(Segments, ShareParametersThatOthersUse) {
  const SegmentedGraph found = segmented_by_name(R"(graph tied(%x) -> (%b)
  input x: float32[B, 4] apart(0)
  parameter w: float32[4, 4]
  node one = aten::linear(%x, %w, none) -> %a
    result a: float32[B, 4]
  node two = aten::linear(%a, %w, none) -> %b
    result b: float32[B, 4]
)",
                                                 {{"one"}});
  ASSERT_EQ(found.segments[0].state.size(), 1u);
  EXPECT_TRUE(found.segments[0].state[0].is_shared);
}

TEST(Segments, DoNotWriteToResultsOfOthers) {
  EXPECT_THROW((void)segmented_by_name(R"(graph written(%x) -> (%b)
  input x: float32[B, 4] apart(0)
  node one = aten::exp(%x) -> %a
    result a: float32[B, 4]
  node two = aten::relu_(%a) -> %b writes %a
    result b: float32[B, 4] shares %a
)",
                                       {{"two"}}),
               PlanError);
}

}  // namespace
}  // namespace rannc::ir
