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
  EXPECT_EQ(error_of(R"({"format": "rannc-plan", "version": 2})"),
            "plan: $.version: version 2 of 'rannc-plan' is unknown; this program reads version 1");
  EXPECT_EQ(error_of(R"({"format": "rannc-plan", "version": 1, "schedule": "gpip"})"),
            "plan: $.schedule: unknown schedule 'gpip'; did you mean 'gpipe'?");
}

TEST(PlanFile, NamesLineAndColumnOfBadSyntax) {
  const std::string error = error_of("{\"format\": \"rannc-plan\",\n  \"version\" 1}");
  EXPECT_NE(error.find("line 2, column 13"), std::string::npos) << error;
}

}  // namespace
}  // namespace rannc::plan
