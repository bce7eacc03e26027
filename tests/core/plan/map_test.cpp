#include <gtest/gtest.h>

#include "plan/graphs.h"

namespace rannc::plan {
namespace {

std::vector<std::vector<std::string>> nodes_of(const Plan& plan) {
  std::vector<std::vector<std::string>> nodes;
  for (const Stage& stage : plan.stages) nodes.push_back(stage.nodes);
  return nodes;
}

TEST(MapTo, KeepsTheStagesOfNodesWithTheSameNames) {
  Plan plan = chain_plan({1, 2}, 2);
  plan.stages[0].nodes = {"n0", "n1"};
  plan.stages[1].nodes = {"n2"};
  const Plan mapped = map_to(plan, chain(3, /*loss=*/true), chain(3));
  EXPECT_EQ(nodes_of(mapped), nodes_of(plan));
  EXPECT_EQ(mapped.stages[1].ranks, plan.stages[1].ranks);
}

TEST(MapTo, KeepsSegmentsAndWhatIsNewAmongTheirNodes) {
  Plan plan = chain_plan({1}, 1);
  plan.stages[0].nodes = {"n0", "n1", "n2", "n3"};
  const ir::Graph from = chain(4);
  plan.stages[0].segments = {{"n0", "n1", "n2"}, {"n3"}};
  GraphMaker to;  // n1 has another name
  ir::ValueId value = to.input("x");
  for (const std::string name : {"n0", "renamed", "n2", "n3"}) value = to.node(name, {value});
  to.graph.outputs = {value};
  const Plan mapped = map_to(plan, from, to.graph);
  EXPECT_EQ(mapped.stages[0].segments,
            (std::vector<std::vector<std::string>>{{"n0", "renamed", "n2"}, {"n3"}}));
}

TEST(MapTo, FindsRenamedNodesByTheirParametersThroughClones) {
  GraphMaker eval;
  const auto x = eval.input("x");
  const auto w0 = eval.parameter("w0");
  const auto w1 = eval.parameter("w1");
  const auto a = eval.node("first", {x, w0});
  eval.graph.outputs = {eval.node("second", {a, eval.row_free_node("t", {w1})})};
  const Plan mapped = map_to(chain_plan({1, 1}, 1), chain(2), eval.graph);
  EXPECT_EQ(nodes_of(mapped), (std::vector<std::vector<std::string>>{{"first"}, {"second"}}));
}

TEST(MapTo, PlacesTheRestByItsNeighbours) {
  GraphMaker eval;
  const auto x = eval.input("x");
  const auto w0 = eval.parameter("w0");
  const auto w1 = eval.parameter("w1");
  const auto before = eval.node("before", {x});  // used by n1 only: with it
  const auto a = eval.node("n0", {x, w0});
  const auto b = eval.node("n1", {a, before, w1});
  const auto after = eval.node("after", {b});  // used by nobody known: after n1
  eval.graph.outputs = {after};
  const Plan mapped = map_to(chain_plan({1, 1}, 1), chain(2), eval.graph);
  EXPECT_EQ(nodes_of(mapped),
            (std::vector<std::vector<std::string>>{{"n0"}, {"before", "n1", "after"}}));
}

TEST(MapTo, MovesNodesLaterRatherThanLettingValuesFlowBackwards) {
  // In the other capture, n0 comes after n1.
  GraphMaker eval;
  const auto x = eval.input("x");
  const auto b = eval.node("n1", {x});
  eval.graph.outputs = {eval.node("n0", {b})};
  const Plan mapped = map_to(chain_plan({1, 1}, 1), chain(2), eval.graph);
  EXPECT_EQ(nodes_of(mapped), (std::vector<std::vector<std::string>>{{}, {"n1", "n0"}}));
}

TEST(MapTo, LeavesAStageEmptyWhenItsNodesAreGone) {
  const Plan mapped = map_to(chain_plan({1, 1, 1}, 1), chain(3), chain(2));
  EXPECT_EQ(nodes_of(mapped), (std::vector<std::vector<std::string>>{{"n0"}, {"n1"}, {}}));
}

}  // namespace
}  // namespace rannc::plan
