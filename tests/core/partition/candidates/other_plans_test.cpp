#include "rannc/partition/other_plans.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "partition/problems.h"
#include "rannc/partition/evaluate.h"
#include "rannc/partition/planner.h"

namespace rannc::partition {
namespace {

using nlohmann::json;

Request request_with(std::vector<int64_t> micro_batches, plan::Schedule schedule) {
  Request request;
  request.global_batch = 8;
  request.micro_batches = std::move(micro_batches);
  request.schedules = {schedule};
  request.max_interleave = 2;
  request.force.stages = schedule == plan::Schedule::interleaved ? 4 : 2;
  return request;
}

/// Four equal nodes on two ranks.
struct Example {
  cost::GraphProfile profile =
      testing::chain(std::vector<testing::Link>(4, {.time_ns = 100000, .saved_per_row = 1000}));
  cost::Cluster cluster = testing::cluster(1, 2, 100000);
};

json alternative(const std::string& kind, const std::vector<int>& replicas, int64_t iteration_ns,
                 double peak_bytes, int64_t micro_batches) {
  return {{"kind", kind},
          {"schedule", "1f1b"},
          {"interleave", 1},
          {"micro_batches", micro_batches},
          {"replicas", replicas},
          {"recompute", std::vector<bool>(replicas.size(), false)},
          {"iteration_ns", iteration_ns},
          {"peak_bytes", peak_bytes},
          {"parts",
           {{"slowest_stage", 0},
            {"compute_ns", iteration_ns},
            {"bubble_ns", 0},
            {"transfer_ns", 0},
            {"reduction_ns", 0}}},
          {"why", "as it was"}};
}

TEST(WithMicroBatches, GivesThePlanThatThePlannerMakesForThatCount) {
  Example e;
  e.profile = testing::chain({{.time_ns = 100000}, {.time_ns = 200000}});  // only one cut
  const Request all = request_with({1, 2, 4}, plan::Schedule::one_f_one_b);
  const plan::Plan found = make_plan(e.profile, e.cluster, all);
  ASSERT_EQ(found.micro_batches, 4);

  const plan::Plan changed = with_micro_batches(e.profile, e.cluster, all, found, 2);
  const Request only = request_with({2}, plan::Schedule::one_f_one_b);
  const plan::Plan planned = make_plan(e.profile, e.cluster, only);
  EXPECT_EQ(changed.micro_batches, 2);
  EXPECT_EQ(changed.iteration_ns, planned.iteration_ns);
  EXPECT_EQ(changed.stages, planned.stages);  // predictions and notes, too
  const json notes = json::parse(changed.notes), theirs = json::parse(planned.notes);
  for (const char* key : {"parts", "transfers", "memory_limit_bytes"}) {
    EXPECT_EQ(notes[key], theirs[key]) << key;
  }
  EXPECT_EQ(changed.made_for, planned.made_for);
}

TEST(WithMicroBatches, KeepsTheBoundAndSaysHowTheOthersCompareNow) {
  const Example e;
  const Request request = request_with({1, 2, 4}, plan::Schedule::one_f_one_b);
  plan::Plan found = make_plan(e.profile, e.cluster, request);
  json notes = json::parse(found.notes);
  const auto other = [](int64_t iteration_ns, double peak_bytes, int64_t micro_batches) {
    return alternative("another", {1, 1}, iteration_ns, peak_bytes, micro_batches);
  };
  const plan::Plan changed = with_micro_batches(e.profile, e.cluster, request, found, 1);
  const int64_t ns = changed.iteration_ns;
  notes["alternatives"] = {other(ns - 2000, 1, 4), other(ns + 3000, 1, 4), other(9, 1e9, 4),
                           other(ns, 1, 1)};
  found.notes = notes.dump();

  const json after = json::parse(with_micro_batches(e.profile, e.cluster, request, found, 1).notes);
  EXPECT_EQ(after["bound_ns"], notes["bound_ns"]);
  EXPECT_NEAR(after["gap"], static_cast<double>(ns) / notes["bound_ns"].get<double>(), 1e-6);
  EXPECT_EQ(after["examined"], notes["examined"]);
  ASSERT_EQ(after["alternatives"].size(), 3);  // the last one is the plan itself
  EXPECT_EQ(after["alternatives"][0]["why"], "predicted to be faster by 2 us");
  EXPECT_THAT(after["alternatives"][1]["why"], ::testing::StartsWith("slower by 3 us: computes"));
  EXPECT_EQ(after["alternatives"][2]["why"], "needs 953.7 MiB of 97.7 KiB");
}

TEST(WithMicroBatches, SaysWhatForbidsACount) {
  const Example e;
  const Request request = request_with({1, 2, 4, 16}, plan::Schedule::one_f_one_b);
  const plan::Plan found = make_plan(e.profile, e.cluster, request);
  const auto reason = [&](int64_t count) {
    const plan::Plan changed = with_micro_batches(e.profile, e.cluster, request, found, count);
    EXPECT_FALSE(changed.feasible);
    return changed.reason;
  };
  EXPECT_EQ(reason(8), "the request does not allow 8 micro-batches");
  EXPECT_THAT(reason(16), ::testing::HasSubstr("need a global batch of 16, not 8"));

  // Two micro-batches of two rows are in flight there, and one of eight holds twice as much.
  cost::Cluster small = e.cluster;
  small.device_memory_bytes = evaluate(e.profile, e.cluster, request, found).stages[0].peak_bytes;
  EXPECT_FALSE(with_micro_batches(e.profile, small, request, found, 1).feasible);
}

TEST(WithMicroBatches, AnInterleavedPlanKeepsWholeRoundsOfItsGroups) {
  const Example e;
  const Request request = request_with({1, 2, 4}, plan::Schedule::interleaved);
  const plan::Plan found = make_plan(e.profile, e.cluster, request);
  ASSERT_EQ(found.interleave, 2);
  EXPECT_TRUE(with_micro_batches(e.profile, e.cluster, request, found, 2).feasible);
  EXPECT_EQ(with_micro_batches(e.profile, e.cluster, request, found, 1).reason,
            "1 micro-batches are not a multiple of 2 groups");
}

TEST(PlanOfShape, IsThePlanWithThatShapeForced) {
  const Example e;
  Request request = request_with({1, 2, 4}, plan::Schedule::one_f_one_b);
  request.force.stages = {};
  const Found found = find_plan(e.profile, e.cluster, request);
  ASSERT_EQ(found.plan.stages.size(), 1);  // two replicas

  const plan::Plan other =
      plan_of_arrangement(e.profile, e.cluster, request, {}, found, {.replicas = {1, 1}}).plan;
  request.force = {.stages = 2, .schedule = plan::Schedule::one_f_one_b, .replicas = {{1, 1}}};
  const plan::Plan forced = make_plan(e.profile, e.cluster, request);
  EXPECT_EQ(other.stages, forced.stages);
  EXPECT_EQ(other.micro_batches, forced.micro_batches);
  EXPECT_EQ(other.iteration_ns, forced.iteration_ns);
  EXPECT_GT(other.iteration_ns, found.plan.iteration_ns);
}

TEST(PlanOfShape, SaysWhatTheSearchFound) {
  const Example e;
  Request request = request_with({1, 2, 4}, plan::Schedule::one_f_one_b);
  request.force.stages = {};
  Found found = find_plan(e.profile, e.cluster, request);
  json before = json::parse(found.plan.notes);
  before["alternatives"] = {alternative("2 stages", {1, 1}, 2 * found.plan.iteration_ns, 1, 4),
                            alternative("another", {1}, 9 * found.plan.iteration_ns, 1, 4)};
  found.plan.notes = before.dump();
  found.runners_up = {{{{1, 1}, plan::Schedule::one_f_one_b, 1}, 2 * found.plan.iteration_ns, 1},
                      {{{1}, plan::Schedule::one_f_one_b, 1}, 9 * found.plan.iteration_ns, 1}};

  const Found of_shape =
      plan_of_arrangement(e.profile, e.cluster, request, {}, found, {.replicas = {1, 1}});
  ASSERT_EQ(of_shape.runners_up.size(), 2u);  // the answer, and the one of a third arrangement
  EXPECT_EQ(of_shape.runners_up[0].arrangement, arrangement_of(found.plan));
  EXPECT_EQ(of_shape.runners_up[0].iteration_ns, found.plan.iteration_ns);
  EXPECT_EQ(of_shape.runners_up[0].peak_bytes, found.plan.stages[0].predicted->peak_bytes);
  EXPECT_EQ(of_shape.runners_up[1].arrangement.replicas, std::vector<int>{1});
  const json notes = json::parse(of_shape.plan.notes);
  EXPECT_EQ(notes["bound_ns"], before["bound_ns"]);
  EXPECT_EQ(notes["examined"], before["examined"]);
  const json& answer = notes["alternatives"][0];
  EXPECT_EQ(answer["kind"], "the times of operators");
  EXPECT_EQ(answer["replicas"], json({2}));
  EXPECT_EQ(answer["iteration_ns"], found.plan.iteration_ns);
  EXPECT_EQ(answer["peak_bytes"], found.plan.stages[0].predicted->peak_bytes);
  EXPECT_THAT(answer["why"].get<std::string>(),
              ::testing::StartsWith("predicted to be faster by "));
  // Nor is the best plan of the arrangement itself one of those that lost.
  ASSERT_EQ(notes["alternatives"].size(), 2);
  EXPECT_EQ(notes["alternatives"][1]["kind"], "another");
  EXPECT_THAT(notes["alternatives"][1]["why"], ::testing::StartsWith("slower by "));
}

TEST(PlanOfShape, DoesNotFitWhereNoPlanOfThatShapeDoes) {
  const Example e;
  Request request = request_with({1, 2, 4}, plan::Schedule::one_f_one_b);
  const Found found = find_plan(e.profile, e.cluster, request);
  cost::Cluster small = e.cluster;
  small.device_memory_bytes = 1;
  request.force.stages = {};
  const plan::Plan other =
      plan_of_arrangement(e.profile, small, request, {}, found, {.replicas = {2}}).plan;
  EXPECT_FALSE(other.feasible);
  EXPECT_NE(other.reason, "");
}

}  // namespace
}  // namespace rannc::partition
