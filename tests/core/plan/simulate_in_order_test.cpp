#include <gtest/gtest.h>

#include <algorithm>

#include "plan/graphs.h"
#include "plan/random_programs.h"
#include "rannc/plan/simulate.h"

namespace rannc::plan {
namespace {

TEST(SimulateInOrder, EqualsTheBufferedModelWhereOneMessageIsUnderWayAtATime) {
  // Forwards end at 1 and 2; messages arrive at 11 and 21; the last forward ends at 22, when all
  // ranks add up the loss. Gradients are sent at 23 and 24, and arrive at 28 and 33.
  const Program program =
      lower(chain_plan({1, 1}, 2), chain(2, /*loss=*/true), {2, 0}, /*training=*/true);
  const Durations durations{.forward_ns = {1, 1},
                            .backward_ns = {1, 1},
                            .transfer_ns = {{0, 10}, {0, 0}},
                            .transfer_back_ns = {{0, 5}, {0, 0}},
                            .reduce_ns = {}};
  const Simulation simulation = simulate_in_order(program, durations);
  EXPECT_EQ(simulation.end_ns, 34);
  EXPECT_EQ(simulation.end_ns, simulate(program, durations).end_ns);
  EXPECT_EQ(simulation.peak_in_flight, (std::vector<int>{2, 2}));
}

TEST(SimulateInOrder, LetsMessagesOfARankFollowEachOther) {
  // Stage 0 sends to stage 1 until 11, then to stage 2 until 21; so stage 1's message to stage 2,
  // ready at 12, takes until 31. Buffered, the three take until 22.
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto first = maker.node("n0", {x});
  const auto second = maker.node("n1", {first});
  maker.graph.outputs = {maker.reduced("n2", {second, first}, ir::RowKind::mean)};
  const Program program =
      lower(chain_plan({1, 1, 1}, 1), maker.graph, {1, 1, 1}, /*training=*/false);
  const Durations durations{.forward_ns = {1, 1, 1},
                            .backward_ns = {},
                            .transfer_ns = {{0, 10, 10}, {0, 0, 10}, {0, 0, 0}},
                            .transfer_back_ns = {},
                            .reduce_ns = {}};
  EXPECT_EQ(simulate(program, durations).end_ns, 23);
  EXPECT_EQ(simulate_in_order(program, durations).end_ns, 32);
}

TEST(SimulateInOrder, SumsABucketWhileTheBackwardGoesOn) {
  // The forward ends at 4, the first of two equal buckets is complete at 8, the second at 12; each
  // takes 3.
  Plan plan = chain_plan({2}, 1);
  plan.stages[0].nodes = {"n0", "n1"};
  plan.bucket_bytes = 16;
  const Program program = lower(plan, chain(2, /*loss=*/true), {1, 1}, /*training=*/true);
  ASSERT_EQ(program.buckets[0].size(), 2u);
  const Durations durations{.forward_ns = {4},
                            .backward_ns = {8},
                            .transfer_ns = {{0}},
                            .transfer_back_ns = {},
                            .reduce_ns = {6}};
  const Simulation simulation = simulate_in_order(program, durations);
  EXPECT_EQ(simulation.end_ns, 15);
  EXPECT_EQ(simulation.spans[2].begin_ns, 8);
  EXPECT_EQ(simulation.spans[2].end_ns, 15);
  EXPECT_EQ(simulate(program, durations).end_ns, 18);
}

TEST(SimulateInOrder, TakesAMessageOnlyWhereThereIsMemoryForIt) {
  // Rank 1 takes the memory of a message as the forward before its use begins. Rank 0's forwards
  // end at 1, 2 and 3.
  const Program program =
      lower(chain_plan({1, 1}, 3), chain(2, /*loss=*/true), {3, 0}, /*training=*/false);
  const auto end_ns = [&](double message_ns) {
    return simulate_in_order(program, {.forward_ns = {1, 10},
                                       .backward_ns = {},
                                       .transfer_ns = {{0, message_ns}, {0, 0}},
                                       .transfer_back_ns = {},
                                       .reduce_ns = {}})
        .end_ns;
  };
  // The first message comes at 2, and the others beside forwards, which follow each other.
  EXPECT_EQ(end_ns(1), 32);
  // It comes at 13, when its forward begins, and the second, until 25, too: the forward has ended
  // at 23. The third comes at 37.
  EXPECT_EQ(end_ns(12), 47);
}

TEST(SimulateInOrder, EqualsTheBufferedModelForRandomProgramsWhereMessagesTakeNoTime) {
  RandomPrograms cases(7);
  int compared = 0;
  for (int round = 0; round < 1500; ++round) {
    const RandomPrograms::Case made = cases.next();
    const Program& program = made.program;
    Durations durations;
    const size_t stages = made.plan.stages.size();
    durations.transfer_ns.assign(stages, std::vector<double>(stages, 0));
    durations.reduce_ns.assign(program.reductions.size(), 0);
    for (const Stage& stage : made.plan.stages) {  // those that have led to the order
      const auto& predicted = stage.predicted;
      durations.forward_ns.push_back(
          predicted ? static_cast<double>(std::max<int64_t>(predicted->forward_ns, 1)) : 1);
      durations.backward_ns.push_back(
          predicted ? static_cast<double>(std::max<int64_t>(predicted->backward_ns, 1)) : 2);
    }
    const double buffered_ns = simulate(program, durations).end_ns;
    const double in_order_ns = simulate_in_order(program, durations).end_ns;
    if (std::ranges::none_of(program.order, [](const Communication& one) {
          return one.kind == CommunicationKind::statistics;
        })) {
      ++compared;
      EXPECT_EQ(in_order_ns, buffered_ns) << "round " << round << "\n" << show_order(program);
    }
    for (auto& row : durations.transfer_ns) std::ranges::fill(row, cases.pick(1, 5));
    EXPECT_GE(simulate_in_order(program, durations).end_ns, buffered_ns) << "round " << round;
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace rannc::plan
