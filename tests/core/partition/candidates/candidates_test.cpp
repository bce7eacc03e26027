#include "rannc/partition/candidates.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "plan/graphs.h"
#include "rannc/cost/accumulation.h"
#include "rannc/cost/cost_table.h"
#include "rannc/partition/other_plans.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using ::testing::HasSubstr;

/// A chain of four nodes with a loss, which two ranks train with eight rows.
struct Job {
  ir::Graph graph = plan::chain(4, /*loss=*/true);
  double device_bytes = 1e6;
  predict::OptimizerMemory optimizer = {.state_factor = 2};
  Request request{.global_batch = 8,
                  .micro_batches = {1, 2, 4, 8},
                  .schedules = {plan::Schedule::one_f_one_b},
                  .force = {}};
  PlannerOptions options = {};
  Allowed allowed = {};
  double held_bytes = 0;
  int64_t one_row_ns = 100'000;  ///< forward of a node; of eight rows 800 us

  [[nodiscard]] std::shared_ptr<predict::StepModel> step() const {
    cost::CostTable table;
    table.rows = {1, 8};
    table.node.assign(graph.nodes.size(),
                      {{.forward_ns = one_row_ns, .backward_ns = 2 * one_row_ns},
                       {.forward_ns = 800'000, .backward_ns = 1'600'000}});
    std::vector<cost::SavedStorage> saved;
    for (uint32_t k = 0; k < graph.nodes.size(); ++k) saved.push_back({{k}, {1000, 8000}});
    const cost::Link link{.bandwidth_bytes_per_s = 1e9, .latency_ns = 1000};
    const cost::Cluster cluster{.devices_per_host = 2,
                                .device_memory_bytes = device_bytes,
                                .intra_host = link,
                                .inter_host = link};
    return std::make_shared<predict::StepModel>(
        graph, cost::fold(graph, table, {}, saved), cluster,
        predict::StepCosts{.cores = 2, .accumulate_ns_per_byte = 0.1}, optimizer, saved,
        std::vector<int64_t>{4, 4}, plan::Outputs::loss);
  }
  [[nodiscard]] Candidates candidates() const {
    return {step(), request, options, allowed, held_bytes};
  }
  /// What the search takes, whatever a step holds.
  [[nodiscard]] plan::Plan planned() const {
    const auto model = step();
    const cost::GraphProfile profile = cost::with_accumulation(model->profile(), 0.1);
    return completed(*model, make_plan(profile, model->cluster(), request, options));
  }
};

int64_t step_peak(const plan::Plan& plan) { return std::ranges::max(plan.step.peak_bytes); }

/// Batch normalisation in training, which refuses shares of one row.
ir::Graph normalising() {
  plan::GraphMaker maker;
  const ir::ValueId x = maker.input("x");
  const ir::ValueId a = maker.node("layers.0.bn", {x});
  ir::Node& node = maker.graph[ir::NodeId{0}];
  node.op = "aten::batch_norm";
  node.inputs.insert(node.inputs.end(),
                     {ir::None{}, ir::None{}, ir::None{}, ir::None{}, true, 0.1, 1e-5, false});
  const ir::ValueId w = maker.parameter("w");
  maker.graph.outputs = {maker.reduced("n1", {a, w}, ir::RowKind::mean)};
  return maker.graph;
}

TEST(Candidates, TheBestIsWhatTheSearchTakesWithWhatAStepIsPredictedToTake) {
  const Job job;
  Candidates candidates = job.candidates();
  const plan::Plan& best = candidates.best();
  EXPECT_EQ(best, job.planned());
  EXPECT_TRUE(best.step.ns);
  EXPECT_EQ(&best, &candidates.best());  // found once
}

TEST(Candidates, WhereNothingFitsTheSearchSaysWhy) {
  Job job;
  job.device_bytes = 10;
  try {
    (void)job.candidates().best();
    FAIL() << "a plan in 10 bytes";
  } catch (const InfeasibleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("fits"));
  }
}

TEST(Candidates, AStepThatNeedsMoreThanTheAccountGivesWayToOneThatFits) {
  Job job;
  job.request.micro_batches = {1, 2, 4};
  const plan::Plan all = job.planned();
  // The optimizer needs so much for its step that the account, which does not know it, fits and the
  // step does not. It is of parameter 0, so a stage without the others has room for it.
  job.optimizer.largest_bytes = {0, 0, 0, 0};
  job.optimizer.all_bytes = {40000, 0, 0, 0};
  job.device_bytes = static_cast<double>(step_peak(job.planned()) - 1);
  const plan::Plan taken = job.planned();
  ASSERT_EQ(taken.stages, all.stages);
  ASSERT_GT(static_cast<double>(step_peak(taken)), job.device_bytes);

  const plan::Plan best = job.candidates().best();
  EXPECT_LE(static_cast<double>(step_peak(best)), job.device_bytes);
  EXPECT_NE(best.stages, taken.stages);
  EXPECT_GE(best.iteration_ns, taken.iteration_ns);
}

TEST(Candidates, WithLessMemoryThePlanStaysWhereItFitsAndElseGivesWay) {
  Job job;
  job.allowed = {.fewest_stages = true};
  Candidates candidates = job.candidates();
  const plan::Plan first = candidates.best();
  ASSERT_EQ(first.stages.size(), 1u);
  const auto needed = static_cast<double>(step_peak(first));
  candidates.limit_memory(needed);
  EXPECT_EQ(candidates.best(), first);

  candidates.limit_memory(needed - 1);
  const plan::Plan second = candidates.best();
  EXPECT_LT(static_cast<double>(step_peak(second)), needed);
  job.device_bytes = needed - 1;
  EXPECT_EQ(second, job.candidates().best());

  // One stage was the fewest, and is so no longer.
  while (candidates.best().stages.size() == 1) {
    candidates.limit_memory(static_cast<double>(step_peak(candidates.best()) - 1));
  }
  EXPECT_EQ(candidates.best().stages.size(), 2u);
  candidates.limit_memory(10);
  EXPECT_THROW((void)candidates.best(), InfeasibleError);
}

TEST(Candidates, WhereNoStepFitsThePlanOfTheSearchIsTaken) {
  Job job;
  const double fits = static_cast<double>(step_peak(job.planned()));
  job.optimizer.all_bytes = {1e9, 1e9, 1e9, 1e9};
  job.optimizer.largest_bytes = {0, 0, 0, 0};
  job.device_bytes = 2 * fits;
  EXPECT_EQ(job.candidates().best(), job.planned());
}

TEST(Candidates, TakesNoNumberOfMicroBatchesThatTheModelRefuses) {
  Job job;
  job.graph = normalising();
  job.request.force.replicas = {2};  // of 4 micro-batches, each share has one row
  job.request.micro_batches = {4};
  EXPECT_THROW((void)job.planned(), PlanError);
  EXPECT_THROW((void)job.candidates().best(), PlanError);

  // Four are the fastest where one row takes less than half of two.
  job.one_row_ns = 1000;
  job.request.micro_batches = {1, 2, 4};
  Candidates candidates = job.candidates();
  const plan::Plan best = candidates.best();
  EXPECT_EQ(best.micro_batches, 2);

  job.one_row_ns = 100'000;  // with this, one is the fastest
  Candidates of_one = job.candidates();
  EXPECT_TRUE(of_one.with_micro_batches(of_one.best(), 2));
  EXPECT_FALSE(of_one.with_micro_batches(of_one.best(), 4));
}

TEST(Candidates, TheSamePlanWithAnotherNumberOfMicroBatches) {
  Job job;
  job.request.force.stages = 2;
  Candidates candidates = job.candidates();
  const plan::Plan best = candidates.best();
  const std::optional<plan::Plan> other = candidates.with_micro_batches(best, 2);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->micro_batches, 2);
  EXPECT_TRUE(other->step.ns);
  EXPECT_FALSE(candidates.with_micro_batches(best, 3));  // the request has no 3

  // By the step's prediction, which has the last word.
  ASSERT_GT(step_peak(*other), step_peak(best));
  job.device_bytes = static_cast<double>(step_peak(*other) - 1);
  Candidates smaller = job.candidates();
  EXPECT_EQ(smaller.best().micro_batches, best.micro_batches);
  EXPECT_FALSE(smaller.with_micro_batches(smaller.best(), 2));
}

TEST(Candidates, OtherArrangementsAreOneEachAndNotTooSlow) {
  const Job job;
  Candidates candidates = job.candidates();
  const plan::Plan best = candidates.best();
  const std::vector<plan::Plan> others = candidates.of_other_arrangements(best, 1e9);
  ASSERT_FALSE(others.empty());
  std::vector<Arrangement> seen{arrangement_of(best)};
  for (const plan::Plan& other : others) {
    EXPECT_THAT(seen, ::testing::Not(::testing::Contains(arrangement_of(other))));
    seen.push_back(arrangement_of(other));
    EXPECT_TRUE(other.step.ns);
    EXPECT_GE(other.iteration_ns, best.iteration_ns);
  }
  const double slower_by =
      static_cast<double>(others.front().iteration_ns) / static_cast<double>(best.iteration_ns) - 1;
  EXPECT_TRUE(candidates.of_other_arrangements(best, slower_by / 2).empty());
}

TEST(Candidates, NoOtherArrangementWhereARankCannotHoldTheModelBesideARun) {
  Job job;
  Candidates roomy = job.candidates();
  const std::vector<plan::Plan> others = roomy.of_other_arrangements(roomy.best(), 1e9);
  /// Of a run, beside the whole model; stages have ranks of their own here.
  const auto beyond_model = [](const plan::Plan& plan) {
    int64_t most = 0;
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const plan::Prediction& predicted = *plan.stages[s].predicted;
      most = std::max(most,
                      plan.step.peak_bytes[s] - predicted.param_bytes - predicted.optimizer_bytes);
    }
    return static_cast<double>(most);
  };
  const double own = beyond_model(roomy.best()), other = beyond_model(others.front());
  ASSERT_NE(own, other);
  job.held_bytes = job.device_bytes - std::max(own, other);
  Candidates fitting = job.candidates();
  EXPECT_FALSE(fitting.of_other_arrangements(fitting.best(), 1e9).empty());
  job.held_bytes += 1;
  Candidates full = job.candidates();
  EXPECT_TRUE(full.of_other_arrangements(full.best(), 1e9).empty());
}

TEST(Candidates, WhereMemoryIsTightFewerMicroBatchesAreWorthARun) {
  Job job;
  job.request.force.stages = 2;
  const plan::Plan planned = job.planned();
  ASSERT_EQ(planned.micro_batches, 8);
  const auto others = [&] {
    Candidates candidates = job.candidates();
    return candidates.of_other_arrangements(candidates.best(), 1e9);
  };
  EXPECT_TRUE(others().empty());
  job.device_bytes = 1.9 * static_cast<double>(step_peak(planned));
  const std::vector<plan::Plan> tight = others();
  ASSERT_EQ(tight.size(), 1u);
  EXPECT_LT(tight[0].micro_batches, 8);
  EXPECT_EQ(arrangement_of(tight[0]), arrangement_of(planned));
}

TEST(Candidates, AreAllAllowed) {
  Job job;
  job.options.one_replica = true;
  ASSERT_EQ(job.planned().stages.size(), 2u);
  job.allowed = {.fewest_stages = true};
  Candidates candidates = job.candidates();
  EXPECT_EQ(candidates.best().stages.size(), 1u);
  EXPECT_TRUE(candidates.of_other_arrangements(candidates.best(), 1e9).empty());

  job.request.force.stages = 2;
  job.allowed = {.least_rows = 4};
  Candidates of_rows = job.candidates();
  EXPECT_EQ(of_rows.best().micro_batches, 2);
  EXPECT_THAT(of_rows.other_micro_batches(of_rows.best()), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace rannc::partition
