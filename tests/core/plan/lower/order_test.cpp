#include "plan/lower/order.h"

#include <gtest/gtest.h>

#include <string>

#include "plan/graphs.h"
#include "rannc/plan/program.h"

namespace rannc::plan {
namespace {

/// Lines of show_order() that say what ranks issue and compute.
std::string ranks_of(const Program& program) {
  const std::string text = show_order(program);
  return text.substr(text.find("rank 0: "));
}

TEST(Order, GoesByTheTimesAtWhichMessagesArrive) {
  const ir::Graph graph = chain(2, /*loss=*/true);
  const Program program = lower(chain_plan({1, 1}, 2, Schedule::one_f_one_b), graph, {2, 0}, true);
  verify(program, graph);
  // A forward takes 1, a backward 2:
  //   rank 0   F0 0-1   F1 1-2             B0 4-6   B1 7-9
  //   rank 1            F0 1-2   B0 2-4   F1 4-5   B1 5-7
  // Both inputs are needed when F0 begins, or one forward later. The rows of micro-batch 1 are
  // there at 2: rank 1 takes them before its backward, though it computes with them after it.
  EXPECT_EQ(show_order(program),
            "0: rows of value 0 of micro-batch 0, from the user on rank 0 to stage 0 on rank 0\n"
            "1: rows of value 0 of micro-batch 1, from the user on rank 0 to stage 0 on rank 0\n"
            "2: rows of value 2 of micro-batch 0, from stage 0 on rank 0 to stage 1 on rank 1\n"
            "3: rows of value 2 of micro-batch 1, from stage 0 on rank 0 to stage 1 on rank 1\n"
            "4: gradient of value 2 of micro-batch 0, from stage 1 on rank 1 to stage 0 on rank 0\n"
            "5: gradient of value 2 of micro-batch 1, from stage 1 on rank 1 to stage 0 on rank 0\n"
            "6: scalar outputs of all ranks\n"
            "rank 0: 0 1 F0.0 2 F0.1 3 4 B0.0 5 B0.1 6\n"
            "rank 1: 2 F1.0 3 B1.0 4 F1.1 B1.1 5 6\n");
}

TEST(Order, TakesTheTimesFromThePredictionsAndAtLeastOne) {
  const ir::Graph graph = chain(2, /*loss=*/true);
  Plan plan = chain_plan({1, 1}, 2, Schedule::one_f_one_b);
  plan.stages[0].predicted = Prediction{.forward_ns = 5, .backward_ns = 5};
  plan.stages[1].predicted = Prediction{.forward_ns = 0, .backward_ns = 1};
  const Program program = lower(plan, graph, {2, 0}, true);
  verify(program, graph);
  //   rank 0   F0 0-5        F1 5-10            B0 10-15   B1 15-20
  //   rank 1          F0 5-6   B0 6-7   F1 10-11   B1 11-12
  // The first gradient is there at 7, before the rows of micro-batch 1 at 10.
  EXPECT_EQ(ranks_of(program),
            "rank 0: 0 1 F0.0 2 F0.1 3 4 B0.0 5 B0.1 6\n"
            "rank 1: 2 F1.0 B1.0 3 4 F1.1 B1.1 5 6\n");
  EXPECT_EQ(program.order[3].direction, Direction::backward);
  EXPECT_EQ(program.order[4].direction, Direction::forward);
}

TEST(Order, TakesRowsFromTheUserOneComputationBeforeTheirUse) {
  const ir::Graph graph = chain(1);
  const Program program = lower(chain_plan({1}, 3), graph, {0, 3}, true);
  verify(program, graph);
  // 0, 1 and 3 are the inputs of rank 1, 2, 4 and 5 its outputs, 6 to 8 the gradients of these.
  EXPECT_EQ(ranks_of(program),
            "rank 0: 0 1 F0.0 2 3 F0.1 4 F0.2 5 return 6 7 B0.0 8 B0.1 B0.2\n"
            "rank 1: 0 1 2 3 4 5 return 6 7 8\n");
}

TEST(Order, PutsBucketsInsideTheBackwardThatCompletesThem) {
  const ir::Graph graph = chain(2);
  Plan plan;
  plan.micro_batches = 2;
  plan.bucket_bytes = 16;  // one parameter
  plan.stages = {stage({"n0", "n1"}, {0, 1})};
  plan.stages[0].predicted = Prediction{.forward_ns = 10, .backward_ns = 20};
  const Program program = lower(plan, graph, {2, 2}, true);
  verify(program, graph);
  // Half of the bytes are complete in the middle of the last backward, the others at its end.
  EXPECT_EQ(ranks_of(program),
            "rank 0: 0 2 F0.0 4 F0.1 6 return 8 10 B0.0 B0.1(12) 13\n"
            "rank 1: 1 3 F0.0 5 F0.1 7 return 9 11 B0.0 B0.1(12) 13\n");
  const std::string json = to_json(program);
  EXPECT_NE(json.find("\"buckets\": [\n  [[1],[0]]]"), std::string::npos) << json;
  EXPECT_NE(json.find("[\"bucket\", 0, 0],\n  [\"bucket\", 0, 1]]"), std::string::npos) << json;
  EXPECT_NE(json.find("[12, 17, \"inside\"],[13, 19]]"), std::string::npos) << json;
}

TEST(Order, SaysOfWhichBucketsEachRankGetsItsShard) {
  const ir::Graph graph = chain(2);
  Plan plan;
  plan.shard_optimizer = true;
  plan.stages = {stage({"n0", "n1"}, {0, 1})};
  const Program program = lower(plan, graph, {2, 2}, true);
  verify(program, graph);
  ASSERT_EQ(program.buckets.size(), 1);
  EXPECT_TRUE(program.buckets[0].at(0).sharded);
  const std::string json = to_json(program);
  EXPECT_NE(json.find("\"buckets\": [\n  [[\"sharded\", 1, 0]]]"), std::string::npos) << json;
}

TEST(Order, LetsABucketWaitForTheLastOfItsRanks) {
  // The last stage uses w0, too: it is done with it long before the first one is.
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto w0 = maker.parameter("w0");
  const auto a = maker.node("n0", {x, w0});
  maker.graph.outputs = {maker.reduced("n1", {a, w0}, ir::RowKind::mean)};
  Plan plan = chain_plan({1, 1}, 1, Schedule::one_f_one_b);
  plan.bucket_bytes = 16;
  const Program program = lower(plan, maker.graph, {1, 0}, true);
  verify(program, maker.graph);
  // Rank 0: F 0-1, B 4-6; rank 1: F 1-2, B 2-4. The bucket ends at 6, as the outputs do.
  EXPECT_EQ(ranks_of(program),
            "rank 0: 0 F0.0 1 2 B0.0 3 4\n"
            "rank 1: 1 F1.0 B1.0 2 3 4\n");
  EXPECT_EQ(program.order[4].kind, CommunicationKind::bucket);
}

TEST(Order, PutsBucketsAndStatisticsOfTheWholeBatchInTheOrderOfTheBackward) {
  GraphMaker maker;
  const auto a = maker.node("n0", {maker.input("x"), maker.parameter("w0")});
  const auto b = maker.node("n1", {a});
  ir::Node& norm = maker.graph.nodes.back();
  norm.op = "aten::batch_norm";
  norm.whole_batch = true;
  norm.inputs.insert(norm.inputs.end(),
                     {ir::None{}, ir::None{}, ir::None{}, ir::None{}, true, 0.1, 1e-5, false});
  maker.graph.outputs = {maker.node("n2", {b, maker.parameter("w2")})};
  Plan plan;
  plan.bucket_bytes = 16;
  plan.stages = {stage({"n0", "n1", "n2"}, {0, 1})};
  const Program program = lower(plan, maker.graph, {2, 0}, true);
  verify(program, maker.graph);
  // w2 is complete before the statistics of the backward, w0 after them. The replica without rows
  // takes part.
  EXPECT_EQ(ranks_of(program),
            "rank 0: 0 F0.0(1) 2 return 3 B0.0(4 5 6)\n"
            "rank 1: F0.0(1) return B0.0(4 5 6)\n");
  EXPECT_EQ(program.order[4].kind, CommunicationKind::bucket);
  EXPECT_EQ(program.order[5].kind, CommunicationKind::statistics);
  // Without a backward there are none but the forward's.
  const Program inference = lower(plan, maker.graph, {2, 0}, false);
  verify(inference, maker.graph);
  EXPECT_EQ(ranks_of(inference), "rank 0: 0 F0.0(1) 2\nrank 1: F0.0(1)\n");
}

TEST(Order, IsTheSameWheneverThePlanIs) {
  const ir::Graph graph = chain(4, /*loss=*/true);
  const Plan plan = interleaved_plan(2, 2, 4);
  EXPECT_EQ(lower(plan, graph, {3, 5}, true), lower(plan, graph, {3, 5}, true));
}

}  // namespace
}  // namespace rannc::plan
