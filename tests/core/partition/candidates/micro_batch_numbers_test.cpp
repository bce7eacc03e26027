#include "partition/candidates/micro_batch_numbers.h"

#include <gmock/gmock.h>

#include <vector>

namespace rannc::partition {
namespace {

using ::testing::ElementsAre;

Request rows(int64_t count) {
  Request request;
  request.global_batch = count;
  request.micro_batches = {1, 2, 4, 8, 16};
  return request;
}

plan::Plan plan_of(const std::vector<int>& replicas, int64_t micro_batches) {
  plan::Plan plan;
  plan.micro_batches = micro_batches;
  for (const int count : replicas) {
    plan.stages.emplace_back().ranks.resize(static_cast<size_t>(count));
  }
  return plan;
}

TEST(MicroBatchNumbers, NoShareBecomesASingleRow) {
  // A model may treat one row in another way, and batch normalisation cannot.
  EXPECT_THAT(numbers_worth_a_run(rows(16), plan_of({1, 1}, 2)), ElementsAre(1, 4, 8));
  EXPECT_THAT(numbers_worth_a_run(rows(16), plan_of({1, 3}, 2)), ElementsAre(1));
  EXPECT_THAT(numbers_worth_a_run(rows(15), plan_of({1, 1}, 2)), ElementsAre(1, 4));
  // Of the planner's one row it does not become fewer.
  EXPECT_THAT(numbers_worth_a_run(rows(16), plan_of({2, 2}, 8)), ElementsAre(1, 2, 4));
}

TEST(MicroBatchNumbers, OneStageIsNoPipelineToFill) {
  EXPECT_THAT(numbers_worth_a_run(rows(16), plan_of({2}, 4)), ElementsAre(1, 2));
}

TEST(MicroBatchNumbers, SharesHaveTheirRowsOnTheStageWithMostReplicas) {
  EXPECT_THAT(numbers_with_rows(rows(16), {1, 1}, 2), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(numbers_with_rows(rows(16), {1, 3}, 2), ElementsAre(1, 2));
  EXPECT_THAT(numbers_with_rows(rows(16), {1, 1}, 1), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(numbers_with_rows(rows(16), {17}, 1), ElementsAre());
}

TEST(MicroBatchNumbers, BelowOne) {
  EXPECT_THAT(numbers_below(rows(16), 8), ElementsAre(1, 2, 4));
  EXPECT_THAT(numbers_below(rows(16), 1), ElementsAre());
}

}  // namespace
}  // namespace rannc::partition
