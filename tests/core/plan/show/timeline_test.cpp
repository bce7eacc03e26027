#include <gtest/gtest.h>

#include "plan/graphs.h"
#include "rannc/plan/simulate.h"

namespace rannc::plan {
namespace {

std::string draw(const Plan& plan, int world, bool training = true) {
  const ir::Graph graph = chain(static_cast<int>(plan.stages.size()), /*loss=*/true);
  const std::vector<int64_t> rows(static_cast<size_t>(world), plan.micro_batches);
  return timeline(lower(plan, graph, rows, training));
}

TEST(Timeline, OfFillDrainWithTwoStagesAndThreeMicroBatches) {
  EXPECT_EQ(draw(chain_plan({1, 1}, 3), 2),
            "F0 F1 F2  .  . B0 B1 B2\n"
            " . F0 F1 F2 B0 B1 B2  .\n");
}

TEST(Timeline, ShowsReplicasAndIdleRanks) {
  EXPECT_EQ(draw(chain_plan({2, 1}, 2), 4),
            "F0 F1  .  . B0 B1\n"
            "F0 F1  .  . B0 B1\n"
            " . F0 F1 B0 B1  .\n"
            " .  .  .  .  .  .\n");
}

TEST(Timeline, OfOneForwardOneBackward) {
  // Stage 0 warms up with two forwards, stage 1 with one. Stage 2 returns the gradient of
  // micro-batch 0 at 4, stage 1 at 5, so stage 0 runs B0 at 5, and only then F3.
  EXPECT_EQ(draw(chain_plan({1, 1, 1}, 4, Schedule::one_f_one_b), 3),
            "F0 F1 F2  .  . B0 F3 B1  . B2  . B3\n"
            " . F0 F1  . B0 F2 B1 F3 B2  . B3  .\n"
            " .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .\n");
}

TEST(Timeline, OfInterleavedStages) {
  // Two groups of two stages (0 and 2; 1 and 3), two micro-batches: group 0 warms up with
  // min(4, 2 * 1 + 2) = 4 forwards, group 1 with 2.
  EXPECT_EQ(draw(interleaved_plan(2, 2, 2), 2),
            "F0.0 F1.0 F0.2 F1.2    . B0.2    . B1.2 B0.0 B1.0\n"
            "   . F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 B0.1 B1.1    .\n");
}

TEST(Timeline, WithoutTrainingIsForwardsOnly) {
  EXPECT_EQ(draw(chain_plan({1, 1}, 3, Schedule::one_f_one_b), 2, /*training=*/false),
            "F0 F1 F2  .\n"
            " . F0 F1 F2\n");
}

}  // namespace
}  // namespace rannc::plan
