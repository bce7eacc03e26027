#include "rannc/partition/planner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "partition/problems.h"
#include "rannc/partition/evaluate.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using testing::chain;
using testing::cluster;
using testing::Link;

Request batch(int64_t rows) {
  Request request;
  request.global_batch = rows;
  return request;
}

TEST(Planner, SharesTheBatchWhenNothingHasToBeReduced) {
  // No parameters, so no reduction: one stage on both ranks takes 2 rows * 300 ns = 600 ns; two
  // stages could not be faster, and one rank takes 1200.
  const plan::Plan plan = make_plan(chain({{}}), cluster(1, 2), batch(4));
  ASSERT_TRUE(plan.feasible);
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].ranks, (std::vector<plan::Rank>{0, 1}));
  EXPECT_EQ(plan.micro_batches, 1);
  EXPECT_EQ(plan.iteration_ns, 600);
}

TEST(Planner, CutsTheModelWhenParametersDoNotFitOneDevice) {
  // Each node has 100 bytes of parameters: with gradient and optimizer 400 bytes. A device of 500
  // holds one node, so there are two stages of one node each.
  const plan::Plan plan = make_plan(chain({{.param_bytes = 100}, {.param_bytes = 100}}),
                                    cluster(1, 2, 500), batch(2));
  ASSERT_TRUE(plan.feasible) << plan.reason;
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].nodes, std::vector<std::string>{"n0"});
  EXPECT_EQ(plan.stages[1].nodes, std::vector<std::string>{"n1"});
}

TEST(Planner, PredictsWhatEvaluateSays) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const cost::GraphProfile profile = testing::random_profile(random, 1 + trial % 9);
    const cost::Cluster machine = cluster(1 + trial % 2, 1 + trial % 3, 1500 + 20 * trial);
    Request request = batch(1 + trial % 7);
    request.reduction_buckets = 1 + trial % 3;
    const plan::Plan plan = make_plan(profile, machine, request);
    ASSERT_EQ(plan, make_plan(profile, machine, request)) << "trial " << trial;
    if (!plan.feasible) continue;
    const Evaluation verdict = evaluate(profile, machine, request, plan);
    ASSERT_TRUE(verdict.problems.empty()) << "trial " << trial << ": " << verdict.problems[0];
    EXPECT_EQ(plan.iteration_ns, std::llround(verdict.iteration_ns));
    for (size_t k = 0; k < plan.stages.size(); ++k) {
      EXPECT_EQ(plan.stages[k].predicted->peak_bytes, std::llround(verdict.stages[k].peak_bytes));
      EXPECT_EQ(plan.stages[k].predicted->forward_ns, std::llround(verdict.stages[k].forward_ns));
    }
  }
}

}  // namespace
}  // namespace rannc::partition
