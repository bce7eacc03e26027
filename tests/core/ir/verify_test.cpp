#include <gtest/gtest.h>

#include <functional>

#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

constexpr std::string_view kGood = R"(graph good(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  parameter w: float32[4, 4]
  node exp = aten::exp(%x) -> %h
    result h: float32[B, 4] apart(0)
  node mm = aten::mm(%h, %w) -> %y
    result y: float32[B, 4] apart(0)
)";

/// What verify() says after one mistake; "" when it says nothing.
std::string complaint(const std::function<void(Graph&)>& mistake) {
  Graph graph = parse(kGood);
  mistake(graph);
  try {
    verify(graph);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

TEST(Verify, AcceptsAGoodGraph) {
  EXPECT_EQ(complaint([](Graph&) {}), "");
}

TEST(Verify, NamesTheValueOrNodeOfEachMistake) {
  const std::string bug = "malformed graph: ";
  EXPECT_EQ(complaint([](Graph& g) { g.nodes[0].inputs[0] = ValueId{99}; }),
            bug + "node 'exp' (aten::exp) reads a dangling value");
  EXPECT_EQ(complaint([](Graph& g) { std::swap(g.nodes[0].inputs, g.nodes[1].inputs); }),
            bug + "node 'exp' (aten::exp) reads 'h' before it is defined");
  EXPECT_EQ(complaint([](Graph& g) { g.values[1].name = "x"; }),
            bug + "value 'x' has the name of another value");
  EXPECT_EQ(complaint([](Graph& g) { g.values[1].aliases = {"y"}; }),
            bug + "value 'y' has the name of another value");
  EXPECT_EQ(complaint([](Graph& g) { g.nodes[1].name = "exp"; }),
            bug + "node 'exp' (aten::mm) has the name of another node");
  EXPECT_EQ(complaint([](Graph& g) { g.nodes[1].name = "a:0"; }),
            bug + "node 'a:0' (aten::mm) has an empty name or a ':' in its name");
  EXPECT_EQ(complaint([](Graph& g) { g.values[2].producer = {}; }),
            bug + "value 'h' is a result without producer");
  EXPECT_EQ(complaint([](Graph& g) { g.nodes[0].outputs.clear(); }),
            bug + "value 'h' is a result that no node lists among its outputs");
  EXPECT_EQ(complaint([](Graph& g) { g.nodes[1].outputs = {ValueId{2}}; }),
            bug + "node 'mm' (aten::mm) lists 'h' as its output, which it does not produce");
  EXPECT_EQ(complaint([](Graph& g) { g.inputs.clear(); }),
            bug + "value 'x' is an input that the graph does not list");
  EXPECT_EQ(complaint([](Graph& g) { g.outputs = {ValueId{7}}; }),
            bug + "graph 'good' has a dangling output");
  EXPECT_EQ(complaint([](Graph& g) { g.values[2].storage = {3}; }),
            bug + "value 'h' shares the storage of 'y', which is defined later");
  EXPECT_EQ(complaint([](Graph& g) {
              g.values[2].storage = {0};
              g.values[3].storage = {2};
            }),
            bug + "value 'y' shares the storage of 'h', which is itself an alias");
  EXPECT_EQ(complaint([](Graph& g) { g.values[2].rows.inner = 2; }),
            bug + "value 'h' keeps 1 x rows x 2 in dimension 0, whose size is 0 + 1 per row");
  EXPECT_EQ(complaint([](Graph& g) { g.nodes[0].writes = {ValueId{3}}; }),
            bug + "node 'exp' (aten::exp) writes 'y' before it is defined");
  EXPECT_EQ(complaint([](Graph& g) { g.nodes[0].kind = OpKind::python; }),
            bug + "node 'exp' (aten::exp) needs an object exactly when it is scripted or python");
}

}  // namespace
}  // namespace rannc::ir
