#include "rannc/predict/step_model.h"

#include <gtest/gtest.h>

#include "plan/graphs.h"
#include "rannc/cost/cost_table.h"
#include "rannc/util/error.h"

namespace rannc::predict {
namespace {

using plan::ActionKind;
using plan::chain_plan;

/// Two replicas of a chain with a loss, one row on each; 100 ns forward and 200 ns backward per row
/// and node. Messages of the host take 1 us.
class StepModelTest : public ::testing::Test {
 protected:
  static StepModel model(const StepCosts& costs, const std::vector<int64_t>& rows) {
    const ir::Graph graph = plan::chain(1, /*loss=*/true);
    cost::CostTable table;
    table.rows = {1, 2};
    table.node.assign(graph.nodes.size(), {{.forward_ns = 100, .backward_ns = 200},
                                           {.forward_ns = 200, .backward_ns = 400}});
    const cost::Link link{.bandwidth_bytes_per_s = 1e18, .latency_ns = 1000};
    const cost::Cluster cluster{
        .devices_per_host = 2, .device_memory_bytes = 1000, .intra_host = link, .inter_host = link};
    return {graph, cost::fold(graph, table, {}), cluster, costs, {}, {}, rows, plan::Outputs::loss};
  }

  /// Runs of `plan` in which each forward takes 10, each backward 20 and each reduction 7, after 5
  /// of waiting; 3 are around all that, and a third of the optimizer's step takes 4.
  static MeasuredRuns runs_of(const plan::Plan& plan, double run_ns) {
    const ir::Graph graph = plan::chain(1, /*loss=*/true);
    MeasuredRuns runs{.around_ns = {3, 3},
                      .compute_ns = {30, 30},
                      .optimizer_ns = {4, 4},
                      .optimizer_factor = {3, 3},
                      .run_ns = run_ns};
    for (const auto& actions : plan::lower(plan, graph, {1, 1}, /*training=*/true).actions) {
      std::vector<MeasuredAction>& measured = runs.actions.emplace_back(actions.size());
      for (size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind == ActionKind::forward) measured[i].work_ns = 10;
        if (actions[i].kind == ActionKind::backward) measured[i].work_ns = 20;
        if (actions[i].kind == ActionKind::reduce_gradients) measured[i] = {7, 5};
      }
    }
    return runs;
  }
};

TEST_F(StepModelTest, PredictsTheStepOfAPlanAndItsBuckets) {
  const StepModel one = model({.cores = 2, .optimizer_ns = {50}}, {1, 1});
  const plan::Plan plan = one.predict(chain_plan({2}, 1));
  // 300 of computing and 50 of the optimizer. The loss and the gradients go round, which takes two
  // messages of 1 us each time; were they free, nobody would wait.
  EXPECT_EQ(plan.step.ns, 4350);
  EXPECT_EQ(plan.step.idle_ns, (std::vector<int64_t>{4000, 4000}));
  EXPECT_EQ(plan.step.bubble_ns, (std::vector<int64_t>{0, 0}));
  EXPECT_FALSE(plan.step.from_operators_ns);
  EXPECT_EQ(plan.bucket_bytes, int64_t{1} << 25);  // the link is fast
  ASSERT_EQ(plan.step.peak_bytes.size(), 1u);
  EXPECT_GT(plan.step.peak_bytes[0], 0);
}

TEST_F(StepModelTest, RunsReplaceTheTimesOfOperators) {
  const StepModel one = model({.cores = 2, .optimizer_ns = {50}}, {1, 1});
  const plan::Plan before = one.predict(chain_plan({2}, 1));
  // A run: 10 + 20 + 7 + 5 + 3 around, and 4 of the optimizer: 49. It takes 60, so 11 are beyond.
  // The whole step of the optimizer takes 12.
  const Calibration found = one.calibrated(before, runs_of(before, 60));
  EXPECT_EQ(found.beyond_ns, 11);
  EXPECT_EQ(found.plan.step.ns, 57 + 11);
  EXPECT_EQ(found.plan.step.idle_ns, (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(found.plan.step.bubble_ns, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(found.plan.step.from_operators_ns, before.step.ns);
  EXPECT_EQ(found.plan.step.peak_bytes, before.step.peak_bytes);
  EXPECT_EQ(found.plan.bucket_bytes, before.bucket_bytes);
}

TEST_F(StepModelTest, SlowerRanksComputeLongerAndNothingElse) {
  const StepModel one = model({.cores = 2}, {1, 1});
  const plan::Plan plan = one.predict(chain_plan({2}, 1));
  const Calibration found = one.calibrated(plan, runs_of(plan, 60));
  EXPECT_EQ(one.at_speed(found, {1, 1}).ns, found.plan.step.ns);
  // Rank 1 computes 60 and has 30 around, rank 0 half of that. The reduction stays as it is.
  const plan::StepPrediction slower = one.at_speed(found, {1, 2});
  EXPECT_EQ(slower.ns, 60 + 30 + 7 + 5 + 11);
  EXPECT_EQ(slower.idle_ns, (std::vector<int64_t>{5 + 45, 5}));
}

TEST_F(StepModelTest, APlanThatCannotRunIsAnError) {
  EXPECT_THROW((void)model({}, {0, 0}).predict(chain_plan({2}, 1)), PlanError);
}

}  // namespace
}  // namespace rannc::predict
