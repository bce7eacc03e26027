#include "partition/evaluate/write_notes.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "partition/evaluate/time_parts.h"
#include "partition/problems.h"
#include "rannc/partition/planner.h"

namespace rannc::partition {
namespace {

using nlohmann::json;

/// Two nodes on two ranks of one host, two micro-batches of one row. Values take 8 + 10 ns.
struct Example {
  cost::GraphProfile profile = testing::chain({{.time_ns = 100}, {.time_ns = 50}});
  cost::Cluster cluster = testing::cluster(1, 2, 1000);
  Request request;
  plan::Plan plan;
  Example() {
    request.global_batch = 2;
    plan.micro_batches = 2;
    for (int stage = 0; stage < 2; ++stage) {
      plan::Stage& made = plan.stages.emplace_back();
      made.nodes = {"n" + std::to_string(stage)};
      made.ranks = {stage};
    }
  }
};

TEST(TimeParts, AddUpToTheIterationAndSayWhatTransfersAdd) {
  const Example e;
  const Evaluation evaluation = evaluate(e.profile, e.cluster, e.request, e.plan);
  const TimeParts parts =
      time_parts(e.profile, e.cluster, e.request, e.plan, evaluation.iteration_ns);
  // Stage 0 computes 2 * (100 + 200). Were transfers free: its forwards end at 100 and 200, those
  // of stage 1 at 150 and 250, the backwards there at 350 and 450, and here at 550 and 750: 150 of
  // waiting. A transfer takes 10 + 8: the first gradient is back at 386, and the end is at 786.
  EXPECT_EQ(parts.slowest_stage, 0);
  EXPECT_EQ(parts.compute_ns, 600);
  EXPECT_EQ(parts.bubble_ns, 150);
  EXPECT_EQ(parts.transfer_ns, 36);
  EXPECT_EQ(parts.reduction_ns, 0);
  EXPECT_EQ(parts.iteration_ns(), evaluation.iteration_ns);
}

TEST(Notes, SayWhereTheTimeGoesAndWhatIsSent) {
  const Example e;
  const Evaluation evaluation = evaluate(e.profile, e.cluster, e.request, e.plan);
  const SearchReport report{
      .complete = false,
      .nodes = 2,
      .pieces = 2,
      .blocks = 2,
      .examined = 7,
      .bound_ns = 393,
      .parts = time_parts(e.profile, e.cluster, e.request, e.plan, evaluation.iteration_ns),
      .alternatives = {}};
  const json notes = json::parse(make_notes(e.cluster, e.request, evaluation, report));
  EXPECT_EQ(notes["search"], "cut");
  EXPECT_EQ(notes["examined"], 7);
  EXPECT_EQ(notes["gap"], 2.0);  // 786 / 393
  EXPECT_EQ(notes["memory_limit_bytes"], 1000);
  EXPECT_EQ(notes["parts"]["transfer_ns"], 36);
  EXPECT_EQ(notes["transfers"], json::parse(R"([{"from": 0, "to": 1, "forward_ns": 18,
                                                 "backward_ns": 18, "bytes": 8, "grad": true}])"));
  const json stage = json::parse(stage_notes(e.profile, e.plan, evaluation)[0]);
  EXPECT_EQ(stage, json::parse(R"({"modules": "n0", "in_bytes": 0, "graph_input_bytes": 8,
                                   "out_bytes": 8, "send_bytes": 8})"));
}

TEST(Described, IsWhatEvaluateSaysOfAnyPlan) {
  Example e;
  e.plan.notes = R"({"examined": 7, "bound_ns": 393})";
  e.plan.step.ns = 5;  // of another plan, such as the one that this is made of
  const Evaluation evaluation = evaluate(e.profile, e.cluster, e.request, e.plan);
  const plan::Plan plan = described(e.profile, e.cluster, e.request, e.plan, evaluation);
  EXPECT_EQ(plan.iteration_ns, 786);
  EXPECT_EQ(plan.made_for, (plan::MadeFor{.global_batch = 2}));
  EXPECT_EQ(plan.step, plan::StepPrediction{});
  EXPECT_EQ(plan.stages[0].predicted->forward_ns, 100);
  const json notes = json::parse(plan.notes);
  EXPECT_EQ(notes["examined"], 7);
  EXPECT_EQ(notes["gap"], 2.0);  // 786 / 393
  EXPECT_EQ(notes["parts"]["transfer_ns"], 36);
  EXPECT_EQ(json::parse(plan.stages[0].notes)["send_bytes"], 8);
}

TEST(Notes, SayWhyTheOthersLost) {
  const Example e;
  const Evaluation evaluation = evaluate(e.profile, e.cluster, e.request, e.plan);
  SearchReport report{.parts = {.compute_ns = 600, .bubble_ns = 100}, .alternatives = {}};
  report.alternatives = {{.kind = "1 stage",
                          .replicas = {2},
                          .recompute = {false},
                          .parts = {.compute_ns = 500},
                          .peak_bytes = 4096,
                          .fits = false},
                         {.kind = "gpipe",
                          .replicas = {1, 1},
                          .recompute = {false, true},
                          .parts = {.compute_ns = 600, .bubble_ns = 200},
                          .peak_bytes = 10},
                         {.kind = "no recompute",
                          .replicas = {1},
                          .recompute = {false},
                          .parts = {.compute_ns = 700}}};
  const json notes = json::parse(make_notes(e.cluster, e.request, evaluation, report));
  EXPECT_EQ(notes["alternatives"][0]["why"], "needs 4.0 KiB of 1000 B");
  EXPECT_EQ(notes["alternatives"][1]["why"], "slower by 100 ns: bubble 100 ns longer");
  EXPECT_EQ(notes["alternatives"][2]["why"], "as fast, by another plan");
}

TEST(Notes, SayWhatRanBeforeTheFirstStep) {
  const std::string before =
      R"({"alternatives":[{"schedule":"1f1b","interleave":1,"replicas":[2],"why":"as fast"},)"
      R"({"schedule":"gpipe","interleave":1,"replicas":[1,1],"why":"slower by 3 us"},)"
      R"({"schedule":"gpipe","interleave":1,"replicas":[3],"why":"as fast"}]})";
  const TriedPlan taken{{{2}, plan::Schedule::one_f_one_b, 1}, 4, 100};
  const TriedPlan other{{{1, 1}, plan::Schedule::gpipe, 1}, 2, 90.4};
  const json notes = json::parse(with_trial_notes(before, {taken, other}, {taken}));
  EXPECT_FALSE(notes.contains("tried_micro_batches"));  // one number was compared with nothing
  EXPECT_EQ(notes["tried_shapes"][1],
            json::parse(R"({"replicas": [1, 1], "schedule": "gpipe", "interleave": 1,
                            "micro_batches": 2, "run_ns": 90})"));
  EXPECT_EQ(notes["alternatives"][0]["why"], "as fast, but ran longer");
  EXPECT_EQ(notes["alternatives"][1]["why"], "slower by 3 us");  // as was predicted
  EXPECT_EQ(notes["alternatives"][2]["why"], "as fast");         // it did not run
  EXPECT_EQ(json::parse(with_trial_notes(before, {taken}, {taken, other}))["tried_micro_batches"],
            json::parse(R"([{"micro_batches": 4, "run_ns": 100},
                            {"micro_batches": 2, "run_ns": 90}])"));
}

}  // namespace
}  // namespace rannc::partition
