#include "rannc/plan/show.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

const char* const kPlan =
    R"json({"format": "rannc-plan", "version": 1, "feasible": true, "schedule": "1f1b", "interleave": 1, "micro_batches": 4, "iteration_ns": 30000000,
 "stages": [
  {"nodes": ["embed", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn"], "ranks": [0, 1], "recompute": true,
   "predicted": {"rows": 2, "forward_ns": 1000000, "backward_ns": 3000000, "reduce_ns": 500000, "param_bytes": 1048576, "gradient_bytes": 1048576, "optimizer_bytes": 2097152, "activation_bytes": 4096, "buffer_bytes": 2048, "workspace_bytes": 0, "peak_bytes": 4200448},
   "notes": {"modules": "embed, blocks.0, blocks.1.attn", "in_bytes": 0, "out_bytes": 2048, "send_bytes": 4096, "graph_input_bytes": 64}},
  {"nodes": ["blocks.1.mlp", "head"], "ranks": [4], "recompute": false,
   "predicted": {"rows": 4, "forward_ns": 1500000, "backward_ns": 3000000, "reduce_ns": 0, "param_bytes": 2097152, "gradient_bytes": 2097152, "optimizer_bytes": 4194304, "activation_bytes": 8192, "buffer_bytes": 8192, "workspace_bytes": 512, "peak_bytes": 8405504},
   "notes": {"modules": "blocks.1.mlp, head", "in_bytes": 4096, "out_bytes": 0, "send_bytes": 0, "graph_input_bytes": 0}}],
 "notes": {"search": "cut", "nodes": 6, "pieces": 6, "blocks": 6, "examined": 42, "bound_ns": 20000000, "gap": 1.5, "global_batch": 16, "memory_limit_bytes": 16777216, "hosts": 2, "devices_per_host": 4,
  "parts": {"slowest_stage": 1, "compute_ns": 18000000, "bubble_ns": 4000000, "transfer_ns": 7500000, "reduction_ns": 500000},
  "transfers": [{"from": 0, "to": 1, "forward_ns": 2000000, "backward_ns": 2000000, "bytes": 4096, "grad": true}],
  "tried_shapes": [{"replicas": [1, 1, 1, 1], "schedule": "interleaved", "interleave": 2, "micro_batches": 8, "run_ns": 52000000}, {"replicas": [2, 1], "schedule": "1f1b", "interleave": 1, "micro_batches": 8, "run_ns": 41000000}],
  "tried_micro_batches": [{"micro_batches": 8, "run_ns": 41000000}, {"micro_batches": 4, "run_ns": 40250000}, {"micro_batches": 2, "run_ns": 1090000000}],
  "alternatives": [{"kind": "1 stage", "schedule": "gpipe", "interleave": 1, "micro_batches": 1, "replicas": [8], "recompute": [false], "iteration_ns": 31000000, "peak_bytes": 25165824, "why": "needs 24.0 MiB of 16.0 MiB"}]}}
)json";

TEST(Show, StagesMemoryTimeBoundAndAlternatives) {
  EXPECT_EQ("\n" + show(plan_from_json(kPlan), 110), R"(
2 stages on 3 ranks of 8, 4 micro-batches of 4 rows, schedule 1f1b, iteration 30.0 ms, 533 rows/s (178 for
each rank)

stage  ranks         modules
-----  ------------  ------------------------------
    0  0-1 (host 0)  embed, blocks.0, blocks.1.attn
    1  4 (host 1)    blocks.1.mlp, head

One micro-batch on one rank

stage  rows  forward  backward  recompute    takes    gives  reduction
-----  ----  -------  --------  ---------  -------  -------  ---------
    0     2   1.0 ms    3.0 ms  yes            0 B  2.0 KiB     500 us
    1     4   1.5 ms    3.0 ms  no         4.0 KiB      0 B       0 ns

Memory of one rank in MiB (limit 16.0 MiB)

stage  params  grads  optimizer  activations  buffers  work-  peak      of
                                                       space         limit
-----  ------  -----  ---------  -----------  -------  -----  ----  ------
    0     1.0    1.0        2.0        0.004    0.002      0   4.0    25 %
    1     2.0    2.0        4.0        0.008    0.008  0.000   8.0  50.1 %

Where the time goes (stage 1 is the slowest)

part                                            ms   share
------------------------------------------  ------  ------
compute of the busiest ranks                18.000    60 %
bubble: their waiting, were transfers free   4.000  13.3 %
waiting for transfers                        7.500    25 %
gradient reduction after the last backward   0.500  1.67 %

replicas of plans that ran  schedule     micro-batches  time of a run
--------------------------  -----------  -------------  -------------  -----
[1 x 4]                     interleaved              8          52 ms
[2, 1]                      1f1b                     8          41 ms  taken

Micro-batches tried: 8: 41 ms, 4: 40.25 ms (taken), 2: 1090 ms.

No plan of this request is faster than 20.0 ms: this one takes 1.500 times as long.
The search was cut: 42 plans simulated, 6 nodes in 6 blocks.

best plan with  schedule  micro-batches  replicas  iteration  why it lost
--------------  --------  -------------  --------  ---------  --------------------------
1 stage         gpipe                 1  [8]         31.0 ms  needs 24.0 MiB of 16.0 MiB
)");
}

TEST(Show, TheLimitIsThatOfWhatAStepHoldsWhereThatIsKnown) {
  Plan plan = plan_from_json(kPlan);
  plan.notes = R"({"memory_limit_bytes": 4194304})";
  plan.step.peak_bytes = {3145728, 4194304};
  const std::string text = show(plan, 120);
  EXPECT_NE(text.find("  peak in     of\n"), std::string::npos) << text;
  EXPECT_NE(text.find("      3.0   75 %\n"), std::string::npos) << text;
  EXPECT_NE(text.find("      4.0  100 %\n"), std::string::npos) << text;
  const std::string around = explain(plan, "head", 120);
  EXPECT_NE(around.find("3.0 MiB   75 %\n"), std::string::npos) << around;
}

// F0 at 0 to 1 ms, the transfer until 3, forward and backward of stage 1 until 7.5, the gradients
// back at 9.5; then stage 0's backward takes 3 ms. The own reduction of 0.5 ms ends at 30.
TEST(ShowTimeline, DrawsWhenEachStageComputes) {
  EXPECT_EQ("\n" + show_timeline(plan_from_json(kPlan), 70), R"(
         0                                                     30.0 ms
stage 0  0011...............aaaaaa22.bbbbbbb33........cccccc...dddddd=
stage 1  ......000aaaaaa111bbbbbb........222cccccc333dddddd...........

0-9: forward of a micro-batch, by its last digit; a-j: its backward;
=: the stage's own gradient reduction, were none of it hidden; dots:
waiting; one column is 492 us.
)");
}

// Stage 1 computes for 1.6 ms of the 40, in four pieces that are all shorter than half a column
// of 1 ms: that is one column.
TEST(ShowTimeline, DrawsWhatIsShorterThanAColumn) {
  Plan plan = plan_from_json(kPlan);
  plan.notes.clear();
  plan.iteration_ns = 40'000'000;
  plan.stages[0].predicted->forward_ns = plan.stages[0].predicted->backward_ns = 4'000'000;
  plan.stages[1].predicted->forward_ns = plan.stages[1].predicted->backward_ns = 200'000;
  const std::string text = show_timeline(plan, 49);
  const std::string line = text.substr(text.find("stage 1") + 9);
  const std::string picture = line.substr(0, line.find('\n'));
  EXPECT_EQ(picture.size(), 40u);
  EXPECT_EQ(std::ranges::count(picture, '.'), 39) << text;
}

TEST(Explain, NamesTheStageItsNeighboursAndWhatTheBorderCuts) {
  EXPECT_EQ("\n" + explain(plan_from_json(kPlan), "blocks.1.mlp", 110), R"(
'blocks.1.mlp' is in stage 1 of 2: 1 of the stage's 2 nodes.

Stage 1 runs on rank 4 and holds
  blocks.1.mlp, head

                  replicas  forward +   of the     peak      of
                             backward  slowest   memory   limit
----------------  --------  ---------  -------  -------  ------
stage 0 (before)         2     4.0 ms   88.9 %  4.0 MiB    25 %
stage 1 (this)           1     4.5 ms    100 %  8.0 MiB  50.1 %

The border between stages 0 and 1 cuts 4.0 KiB per micro-batch; the longest transfer over it takes 2.0 ms.
)");
}

TEST(Explain, BeginsAllLinesOfWhatAStageHoldsAlike) {
  const std::string text = explain(plan_from_json(kPlan), "embed", 24);
  EXPECT_NE(text.find("and holds\n  embed, blocks.0,\n  blocks.1.attn\n"), std::string::npos)
      << text;
}

TEST(Show, HasTheTimeOfALongStepInSeconds) {
  std::string content = kPlan;
  const std::string compute = "\"compute_ns\": 18000000";
  content.replace(content.find(compute), compute.size(), "\"compute_ns\": 18000000000");
  const std::string text = show(plan_from_json(content));
  EXPECT_NE(text.find("compute of the busiest ranks                18.000"), std::string::npos)
      << text;
}

TEST(Explain, AModuleOfTwoStagesIsSaidToBe) {
  const std::string text = explain(plan_from_json(kPlan), "blocks.1");
  EXPECT_EQ(text.substr(0, text.find("\n\n")),
            "'blocks.1' is in 2 stages:\n"
            "  stage 0 of 2: 1 of the module's 2 nodes, 1 of the stage's 4 nodes;\n"
            "  stage 1 of 2: 1 of the module's 2 nodes, 1 of the stage's 2 nodes.");
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Explain, NamesTheClosestModule) {
  EXPECT_EQ(error_of([] { (void)explain(plan_from_json(kPlan), "block.1"); }),
            "the plan has no module and no node 'block.1'; did you mean 'blocks.1'?");
}

/// Columns of the longest line.
size_t longest_line(const std::string& text) {
  size_t longest = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  return longest;
}

TEST(Show, EightyColumnsAreEnough) {
  Plan plan = plan_from_json(kPlan);
  std::string names = "embed";
  for (int i = 0; i < 39; ++i) names += ", a.module.with.a.long.path" + std::to_string(i);
  plan.stages[0].notes = R"({"modules": ")" + names + R"("})";
  plan.notes.replace(plan.notes.find("needs 24.0"), 10, "slower by 999.9 ms: reduction 999.9 ms");
  const std::string text = show(plan);
  EXPECT_EQ(longest_line(text), 80u) << text;
  EXPECT_NE(text.find("a.module.with.a.long.path3 and 35 more\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("long.path4"), std::string::npos) << text;
  const std::string all = show(plan, 80, {}, /*with_names=*/true);
  EXPECT_EQ(all.substr(0, text.size()), text);
  EXPECT_EQ(all.substr(text.size()),
            "\nOperators of each stage\n\nstage 0\n  embed blocks.0.attn blocks.0.mlp "
            "blocks.1.attn\n\nstage 1\n  blocks.1.mlp head\n");
}

TEST(Headline, IsOneLine) {
  EXPECT_EQ(
      headline(plan_from_json(kPlan)),
      "2 stages on 3 ranks of 8, 4 micro-batches of 4 rows, schedule 1f1b, iteration 30.0 ms, "
      "533 rows/s (178 for each rank)");
}

TEST(Show, OfManyAlternativesTheFirstAreShown) {
  Plan plan = plan_from_json(kPlan);
  nlohmann::json notes = nlohmann::json::parse(plan.notes);
  notes["alternatives"] = std::vector(40, notes["alternatives"][0]);
  plan.notes = notes.dump();
  const std::string text = show(plan, 120);
  EXPECT_NE(text.find("needs 24.0 MiB of 16.0 MiB\nand 28 more, in the plan's file\n"),
            std::string::npos)
      << text;
}

TEST(Show, APlanByHandHasNoNumbersAndNoTimeline) {
  const Plan plan = plan_from_json(R"({"format": "rannc-plan", "version": 1, "schedule": "gpipe",
      "micro_batches": 4, "stages": [{"nodes": ["a", "b", "c"], "ranks": [0, 1, 2]},
                                     {"nodes": ["d"], "ranks": [3]}]})");
  const std::string text = show(plan, 110, 18);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "2 stages on 4 ranks, 4 micro-batches of 4 to 5 rows, schedule gpipe");
  EXPECT_NE(text.find("0-2    a ... c (3 nodes)"), std::string::npos) << text;
  EXPECT_EQ(error_of([&] { (void)show_timeline(plan); }),
            "stage 0 has no predicted times to draw; 'rannc evaluate' computes them");
}

TEST(Show, NotesOfAWrongFormAreAnErrorWithTheirPath) {
  Plan plan = plan_from_json(kPlan);
  plan.notes = R"({"parts": {"slowest_stage": 7}})";
  EXPECT_EQ(error_of([&] { (void)show(plan); }),
            "plan: $.notes.parts.slowest_stage: expected an integer of at most 1, found 7");
}

TEST(Show, ANameCannotDrawOnTheTerminal) {
  Plan plan = plan_from_json(kPlan);
  plan.stages[0].notes = R"({"modules": "a\u001b[2Jb\nc"})";
  EXPECT_NE(show(plan).find("a?[2Jb?c"), std::string::npos);
}

}  // namespace
}  // namespace rannc::plan
