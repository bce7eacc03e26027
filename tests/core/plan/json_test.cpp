#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/graphs.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

// The example of docs/planner-files.md, section 4.
constexpr const char* kExample =
    R"({"format": "rannc-plan", "version": 1, "feasible": true, "schedule": "1f1b", "interleave": 1, "micro_batches": 2, "iteration_ns": 234387,
 "stages": [
  {"nodes": ["emb", "mlp"], "ranks": [0, 1], "recompute": false,
   "predicted": {"rows": 2, "forward_ns": 600, "backward_ns": 1200, "reduce_ns": 4020, "param_bytes": 12000, "gradient_bytes": 12000, "optimizer_bytes": 24000, "activation_bytes": 5600, "buffer_bytes": 4000, "workspace_bytes": 64, "peak_bytes": 57664}},
  {"nodes": ["head"], "ranks": [2], "recompute": false,
   "predicted": {"rows": 4, "forward_ns": 400, "backward_ns": 800, "reduce_ns": 0, "param_bytes": 8000, "gradient_bytes": 8000, "optimizer_bytes": 16000, "activation_bytes": 4000, "buffer_bytes": 8000, "workspace_bytes": 0, "peak_bytes": 44000}}]}
)";

std::string error_of(const std::string& json) {
  try {
    (void)plan_from_json(json);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlanFile, OfTheDocumentationIsReadAndWrittenByteForByte) {
  const Plan plan = plan_from_json(kExample);
  EXPECT_EQ(plan.schedule, Schedule::one_f_one_b);
  EXPECT_EQ(plan.iteration_ns, 234387);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].nodes, (std::vector<std::string>{"emb", "mlp"}));
  EXPECT_EQ(plan.stages[0].ranks, (std::vector<Rank>{0, 1}));
  EXPECT_EQ(plan.stages[0].predicted->peak_bytes, 57664);
  EXPECT_EQ(to_json(plan), kExample);
}

TEST(PlanFile, KeepsNotesOfThePlanAndOfStages) {
  Plan plan = chain_plan({2, 1}, 3);
  plan.notes = R"({"search": "cut", "limit": 1.5})";
  plan.stages[1].notes = R"({"modules":"layers.0-3"})";
  const Plan read = plan_from_json(to_json(plan));
  EXPECT_EQ(read.notes, R"({"search":"cut","limit":1.5})");
  EXPECT_EQ(read.stages[1].notes, plan.stages[1].notes);
  EXPECT_EQ(to_json(read), to_json(plan));
}

// As a training run writes it after runs of the plan; a file of today is the same one tomorrow.
constexpr const char* kSaved =
    R"({"format": "rannc-plan", "version": 1, "feasible": true, "schedule": "gpipe", "interleave": 1, "micro_batches": 1, "iteration_ns": 5,
 "stages": [
  {"nodes": ["n0"], "ranks": [0, 1], "recompute": false}],
 "notes": {"search":"complete","gap":1.5,"global_batch":8,"memory_limit_bytes":100,"alternatives":[],"fingerprint":"1f","world":2,"step_ns":7,"step_idle_ns":[1,2],"step_bubble_ns":[0,1],"bucket_bytes":2097152,"step_peak_bytes":[99],"step_from_operators_ns":6,"tried_micro_batches":[],"mine":1}}
)";

TEST(PlanFile, HasAmongItsNotesWhatSteersAndWhatIsCompared) {
  const Plan plan = plan_from_json(kSaved);
  EXPECT_EQ(plan.made_for, (MadeFor{.fingerprint = "1f", .global_batch = 8, .world = 2}));
  EXPECT_EQ(plan.step, (StepPrediction{.ns = 7,
                                       .idle_ns = {1, 2},
                                       .bubble_ns = {0, 1},
                                       .peak_bytes = {99},
                                       .from_operators_ns = 6}));
  EXPECT_EQ(plan.bucket_bytes, 2097152);
  EXPECT_EQ(plan.notes, R"({"search":"complete","gap":1.5,"memory_limit_bytes":100,)"
                        R"("alternatives":[],"tried_micro_batches":[],"mine":1})");
  EXPECT_EQ(to_json(plan), kSaved);
}

TEST(PlanFile, SaysWhetherReplicasShareTheOptimizersState) {
  Plan plan = chain_plan({2}, 1);
  const std::string alone = to_json(plan);
  EXPECT_EQ(alone.find("shard_optimizer"), std::string::npos) << alone;
  plan.shard_optimizer = true;
  const std::string shared = to_json(plan);
  EXPECT_NE(shared.find("\"shard_optimizer\":true"), std::string::npos) << shared;
  EXPECT_TRUE(plan_from_json(shared).shard_optimizer);
  EXPECT_EQ(plan_from_json(shared), plan);
}

TEST(PlanFile, SaysWhichStagesShareTheirParameters) {
  Plan plan = chain_plan({2}, 1);
  plan.stages[0].shares_parameters = true;
  const std::string text = to_json(plan);
  EXPECT_NE(text.find("\"version\": 4"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("parameters": "shared")"), std::string::npos) << text;
  EXPECT_EQ(plan_from_json(text), plan);
  std::string other = text;
  other.replace(other.find("\"version\": 4"), 12, "\"version\": 3");
  EXPECT_THAT(error_of(other), ::testing::HasSubstr("unknown key 'parameters'"));

  const auto with = [&](const std::string& how) {
    std::string changed = text;
    return changed.replace(changed.find("\"shared\""), 8, '"' + how + '"');
  };
  EXPECT_FALSE(plan_from_json(with("whole")).stages[0].shares_parameters);
  EXPECT_THAT(error_of(with("half")), ::testing::HasSubstr("expected \"shared\" or \"whole\""));
}

TEST(PlanFile, ListsSegmentsOfStagesThatRunAgainInParts) {
  Plan plan = chain_plan({1}, 1);
  plan.stages[0].nodes = {"n0", "n1", "n2", "n3"};
  plan.stages[0].segments = {{"n0"}, {"n2", "n3"}};
  const std::string text = to_json(plan);
  EXPECT_NE(text.find("\"version\": 3"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("recompute": [["n0"], ["n2", "n3"]])"), std::string::npos) << text;
  EXPECT_EQ(plan_from_json(text), plan);
  EXPECT_TRUE(plan.stages[0].runs_again());

  const auto file = [](std::string_view recompute, int version) {
    return R"({"format": "rannc-plan", "schedule": "gpipe", "micro_batches": 1, "version": )" +
           std::to_string(version) +
           R"(, "stages": [{"nodes": ["a", "b", "c"], "ranks": [0], "recompute": )" +
           std::string(recompute) + "}]}";
  };
  EXPECT_EQ(error_of(file("[]", 3)), "no error");
  EXPECT_EQ(error_of(file(R"([["a"]])", 1)),
            "plan: $.stages[0].recompute: expected true or false, found an array");
  EXPECT_EQ(error_of(file(R"([["a"], ["d"]])", 3)),
            "plan: $.stages[0].recompute[1][0]: the stage has no node 'd'");
  EXPECT_EQ(
      error_of(file(R"([["a", "c"]])", 3)),
      "plan: $.stages[0].recompute[0][1]: node 'c' does not follow 'a', so they are no segment");
  EXPECT_EQ(error_of(file(R"([["a", "b"], ["b"]])", 3)),
            "plan: $.stages[0].recompute[1][0]: node 'b' is in a segment twice, or before one that "
            "is listed first");
  EXPECT_EQ(error_of(file(R"([[]])", 3)),
            "plan: $.stages[0].recompute[0]: a segment has at least one node");
  const std::string with_mesh = R"([["a"]], "mesh": [1, 1], "factors": {})";
  EXPECT_EQ(error_of(file(with_mesh, 3)), "no error");
  std::string of_groups = file(R"([["a"]], "mesh": [1, 2], "factors": {})", 3);
  EXPECT_EQ(
      error_of(of_groups.replace(of_groups.find("[0]"), 3, "[0, 1]")),
      "plan: $.stages[0].recompute: a stage with a mesh runs again as a whole: true or false");
}

TEST(PlanFile, IsAlsoWrittenInLinesThatCanBeCompared) {
  Plan plan = chain_plan({1}, 1);
  plan.stages[0].notes = R"({"modules":"schön","gap":1.5,"none":[]})";
  EXPECT_EQ(to_indented_json(plan), R"({
 "format": "rannc-plan",
 "version": 1,
 "feasible": true,
 "schedule": "gpipe",
 "interleave": 1,
 "micro_batches": 1,
 "iteration_ns": 0,
 "stages": [
  {
   "nodes": [
    "n0"
   ],
   "ranks": [
    0
   ],
   "recompute": false,
   "notes": {
    "modules": "sch\u00f6n",
    "gap": 1.5,
    "none": []
   }
  }
 ]
}
)");
}

TEST(PlanFile, NamesThePlaceOfAWrongNoteThatSteersUnlessNotesAreIgnored) {
  const auto file = [](std::string_view notes) {
    return R"({"format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 1,
               "stages": [{"nodes": ["n0"], "ranks": [0]}], "notes": )" +
           std::string(notes) + "}";
  };
  EXPECT_EQ(error_of(file(R"({"bucket_bytes": 1048575})")),
            "plan: $.notes.bucket_bytes: expected an integer of at least 1048576, found 1048575");
  EXPECT_EQ(error_of(file(R"({"step_peak_bytes": [1, 2]})")),
            "plan: $.notes.step_peak_bytes: has 2 numbers, but the plan has 1 stages");
  const Plan plan = plan_from_json(file(R"({"bucket_bytes": "mine"})"), /*with_notes=*/false);
  EXPECT_EQ(plan.notes, "");
  EXPECT_EQ(plan_from_json(file(R"({"bucket_bytes": 1048576})")).notes, "");
  EXPECT_EQ(plan_from_json(file("{}")).notes, "{}");
}

TEST(PlanFile, SaysWhyNothingFits) {
  Plan plan;
  plan.feasible = false;
  plan.reason = "block 'b' needs 2 GiB\n\"quoted\"";
  EXPECT_EQ(plan_from_json(to_json(plan)), plan);
}

TEST(PlanFile, WrittenByHandMayLeaveOutWhatHasADefault) {
  const Plan plan = plan_from_json(
      R"({"format": "rannc-plan", "version": 1, "schedule": "fill_drain", "micro_batches": 2,
          "stages": [{"nodes": ["n0"], "ranks": [0]}]})");
  EXPECT_EQ(plan.schedule, Schedule::gpipe);
  EXPECT_FALSE(plan.stages[0].predicted.has_value());
  EXPECT_TRUE(plan.feasible);
}

TEST(PlanFile, NamesThePlaceOfWhatIsWrong) {
  const std::string head = R"({"format": "rannc-plan", "version": 1, "schedule": "gpipe", )";
  EXPECT_EQ(error_of(head + R"("micro_batches": -1, "stages": []})"),
            "plan: $.micro_batches: expected an integer of at least 1, found -1");
  EXPECT_EQ(error_of(head + R"("micro_batches": 1, "micro_batches": 2, "stages": []})"),
            "plan: $: key 'micro_batches' occurs twice");
  EXPECT_EQ(error_of(head + R"("micro_batches": 1, "stages": [{"nodes": [], "rank": [0]}]})"),
            "plan: $.stages[0]: unknown key 'rank'; did you mean 'ranks'?");
  EXPECT_EQ(error_of(head + R"("micro_batches": 1, "stages": [{"nodes": [], "ranks": [0.5]}]})"),
            "plan: $.stages[0].ranks[0]: expected an integer, found 0.5");
  EXPECT_EQ(error_of(head + R"("micro_batches": 1, "stages": []})"),
            "plan: $.stages: a plan has at least one stage");
  EXPECT_EQ(error_of(head + R"("micro_batches": 1, "stages": [], "notes": 3})"),
            "plan: $.stages: a plan has at least one stage");
  EXPECT_EQ(
      error_of(R"({"format": "rannc-plan", "version": 5})"),
      "plan: $.version: version 5 of 'rannc-plan' is unknown; this program reads versions 1 to 4");
  EXPECT_EQ(error_of(head + R"("micro_batches": 1, "stages": [{"nodes": [], "ranks": [0],
                               "mesh": [1, 1]}]})"),
            "plan: $.stages[0]: unknown key 'mesh'; did you mean 'nodes'?");
  EXPECT_EQ(error_of(R"({"format": "rannc-plan", "version": 1, "schedule": "gpip"})"),
            "plan: $.schedule: unknown schedule 'gpip'; did you mean 'gpipe'?");
}

TEST(PlanFile, OfAMeshIsVersion2) {
  Plan plan;
  Stage& stage = plan.stages.emplace_back();
  stage.nodes = {"a"};
  stage.ranks = {0, 1};
  stage.axes = {1, 2};
  stage.factors = {"w:0"};
  stage.sequence_parallel = true;
  const std::string text = to_json(plan);
  EXPECT_NE(text.find("\"version\": 2"), std::string::npos);
  EXPECT_NE(text.find("\"mesh\": [1, 2], \"factors\": {\"w:0\": \"y\"}"), std::string::npos);
  EXPECT_NE(text.find("\"sequence_parallel\": true"), std::string::npos);
  EXPECT_EQ(plan_from_json(text), plan);
  EXPECT_EQ(error_of(R"({"format": "rannc-plan", "version": 2, "schedule": "gpipe",
    "micro_batches": 1, "stages": [{"nodes": [], "ranks": [0, 1], "mesh": [1, 2],
    "factors": {"w:0": "z"}}]})"),
            "plan: $.stages[0].factors.w:0: factors are cut along \"y\"");
}

TEST(PlanFile, NamesLineAndColumnOfBadSyntax) {
  const std::string error = error_of("{\"format\": \"rannc-plan\",\n  \"version\" 1}");
  EXPECT_NE(error.find("line 2, column 13"), std::string::npos) << error;
}

}  // namespace
}  // namespace rannc::plan
