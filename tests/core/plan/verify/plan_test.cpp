#include <gtest/gtest.h>

#include <functional>

#include "plan/graphs.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

std::string error_of(const Plan& plan, const ir::Graph& graph, int world) {
  try {
    verify(plan, graph, world);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no error";
}

TEST(VerifyPlan, AcceptsIdleRanksAndStagesWithoutNodes) {
  EXPECT_NO_THROW(verify(chain_plan({1, 2}, 1), chain(2), 5));
  Plan plan = chain_plan({1, 1, 1}, 1);
  plan.stages[2].nodes.clear();  // an evaluation graph without the loss
  EXPECT_NO_THROW(verify(plan, chain(2), 3));
}

TEST(VerifyPlan, WantsEveryNodeOnce) {
  const ir::Graph graph = chain(3);
  Plan plan = chain_plan({1, 1}, 1);
  EXPECT_EQ(error_of(plan, graph, 2), "node 'n2' is in no stage");
  plan.stages[1].nodes = {"n1", "n2", "n0"};
  EXPECT_EQ(error_of(plan, graph, 2), "node 'n0' is in stage 0 and again in stage 1");
  plan.stages[1].nodes = {"n1", "n3"};
  EXPECT_EQ(error_of(plan, graph, 2), "stage 1 holds node 'n3', which the graph '' does not have");
}

TEST(VerifyPlan, HasNoPlaceForNodesThatAreCloned) {
  GraphMaker maker;
  const auto x = maker.input("x");
  maker.graph.outputs = {maker.node("n0", {x, maker.row_free_node("t", {maker.parameter("w")})})};
  Plan plan = chain_plan({1}, 1);
  plan.stages[0].nodes = {"t", "n0"};
  EXPECT_EQ(
      error_of(plan, maker.graph, 1),
      "stage 0 holds node 't', which does not depend on the batch: such nodes are cloned into "
      "every stage that uses them and have no place in a plan");
}

TEST(VerifyPlan, LetsNoValueFlowBackwards) {
  Plan plan = chain_plan({1, 1}, 1);
  std::swap(plan.stages[0].nodes, plan.stages[1].nodes);
  EXPECT_EQ(
      error_of(plan, chain(2), 2),
      "value 'n0_out' flows backwards: node 'n1' is in stage 0, but uses a result of stage 1");
}

TEST(VerifyPlan, KeepsNodesTogetherThatShareAWrittenStorage) {
  ir::Graph graph = chain(2);
  graph[ir::NodeId{1}].writes = {*graph.find_value("n0_out")};
  EXPECT_EQ(error_of(chain_plan({1, 1}, 1), graph, 2),
            "nodes 'n0' (stage 0) and 'n1' (stage 1) use a storage that one of them or a third "
            "writes, so they must share a stage");
}

TEST(VerifyPlan, ChecksTheRanks) {
  const ir::Graph graph = chain(2);
  Plan plan = chain_plan({1, 2}, 1);
  EXPECT_EQ(error_of(plan, graph, 2), "stage 1 runs on rank 2, but the job has ranks 0 to 1");
  plan.stages[1].ranks = {1, 1};
  EXPECT_EQ(error_of(plan, graph, 2), "stage 1 names a rank twice");
  plan.stages[1].ranks = {0, 1};
  EXPECT_EQ(error_of(plan, graph, 2),
            "rank 0 is in stages 0 and 1; only schedule 'interleaved' shares ranks between stages");
  plan.stages[1].ranks = {};
  EXPECT_EQ(error_of(plan, graph, 2), "stage 1 has no ranks");
}

TEST(VerifyPlan, ChecksTheShapeOfInterleavedPlans) {
  const ir::Graph graph = chain(4);
  EXPECT_NO_THROW(verify(interleaved_plan(2, 2, 2), graph, 2));
  Plan plan = interleaved_plan(2, 2, 3);
  EXPECT_EQ(
      error_of(plan, graph, 2),
      "schedule 'interleaved' over 2 groups of ranks needs a multiple of 2 micro-batches, not "
      "3");
  plan = interleaved_plan(2, 2, 2);
  plan.stages[3].ranks = {2};
  EXPECT_EQ(error_of(plan, graph, 3), "with interleave 2, stage 3 must have the ranks of stage 1");
  plan.schedule = Schedule::gpipe;
  plan.stages[2].ranks = {3};
  EXPECT_EQ(error_of(plan, graph, 4),
            "interleave is 2, but schedule 'gpipe' has one stage per group of ranks");
}

TEST(VerifyPlan, AllowsOneMicroBatchWhereStatisticsAreThoseOfTheWholeBatch) {
  ir::Graph graph = chain(2);
  graph.nodes[1].whole_batch = true;
  graph.nodes[1].module = "layers.0.bn";
  EXPECT_NO_THROW(verify(chain_plan({2, 1}, 1), graph, 3));
  EXPECT_EQ(error_of(chain_plan({2, 1}, 4), graph, 3),
            "the plan has 4 micro-batches, but with sync_batch_norm the statistics of module "
            "'layers.0.bn' are those of the whole batch, which must then be one micro-batch.\n  "
            "Plan anew with sync_batch_norm, by a first call in training mode, or leave "
            "sync_batch_norm off.");
}

TEST(VerifyPlan, RepeatsTheReasonOfAnInfeasiblePlan) {
  Plan plan;
  plan.feasible = false;
  plan.reason = "too big";
  EXPECT_EQ(error_of(plan, chain(1), 1), "the plan is not feasible: too big");
}

}  // namespace
}  // namespace rannc::plan
