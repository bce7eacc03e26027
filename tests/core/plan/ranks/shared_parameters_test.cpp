#include "rannc/plan/ranks/shared_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/graphs.h"
#include "rannc/plan/program.h"

namespace rannc::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two stages with two replicas each: both use `tied`, and each has a weight of its own.
struct TwoStages {
  GraphMaker maker;
  Plan plan;

  TwoStages() {
    const ir::ValueId x = maker.input("x");
    const ir::ValueId tied = maker.parameter("tied");
    const ir::ValueId few = maker.parameter("few");
    maker.graph[few].dims = {{1, 0}, {4, 0}};
    ir::ValueId h = maker.node("a", {x, tied, maker.parameter("first"), few});
    h = maker.node("b", {h, tied, maker.parameter("second")});
    maker.graph.outputs = {maker.reduced("loss", {h}, ir::RowKind::mean)};
    plan.stages = {{.nodes = {"a"}, .ranks = {0, 1}}, {.nodes = {"b", "loss"}, .ranks = {2, 3}}};
  }
};

TEST(SharedParameters, AreThoseOfOneStageWithRowsForAllReplicas) {
  const TwoStages job;
  const Plan shared = share_parameters(job.plan, job.maker.graph);
  EXPECT_THAT(shared.stages[0].shared, ElementsAre("first"));
  EXPECT_THAT(shared.stages[1].shared, ElementsAre("second"));
  EXPECT_TRUE(shared.stages[0].shares_parameters);
  EXPECT_EQ(without_shared_parameters(shared), job.plan);
  EXPECT_THAT(share_parameters(job.plan, job.maker.graph, {"first"}).stages[0].shared, IsEmpty());
}

TEST(SharedParameters, AreNotOfAStageOfOneReplica) {
  TwoStages job;
  job.plan.stages[0].ranks = {0};
  const Plan shared = share_parameters(job.plan, job.maker.graph);
  EXPECT_FALSE(shared.stages[0].shares_parameters);
  EXPECT_TRUE(shared.stages[1].shares_parameters);
}

TEST(SharedParameters, AreNotSummedByTheProgram) {
  const TwoStages job;
  const Plan shared = share_parameters(job.plan, job.maker.graph);
  const Program program = lower(shared, job.maker.graph, {2, 2, 2, 2}, /*training=*/true);
  std::vector<std::string> summed;
  for (const Reduction& reduction : program.reductions) {
    for (ir::ValueId value : reduction.parameters) {
      summed.push_back(job.maker.graph[value].name);
    }
  }
  std::ranges::sort(summed);
  EXPECT_THAT(summed, ElementsAre("few", "tied"));
  verify(program, job.maker.graph);
}

TEST(SharedParameters, AreCutIntoEqualPartsButForTheLast) {
  EXPECT_EQ(rows_of_replica(7, 2), 4);
  EXPECT_EQ(rows_of_replica(8, 4), 2);
}

}  // namespace
}  // namespace rannc::plan
