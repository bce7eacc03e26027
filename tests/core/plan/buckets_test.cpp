#include "rannc/plan/buckets.h"

#include <gtest/gtest.h>

#include "plan/graphs.h"

namespace rannc::plan {
namespace {

using ir::DType;

std::vector<std::vector<size_t>> parameters_of(const std::vector<Bucket>& buckets) {
  std::vector<std::vector<size_t>> parameters;
  for (const Bucket& bucket : buckets) parameters.push_back(bucket.parameters);
  return parameters;
}

TEST(Buckets, BeginWithWhatTheForwardUsesLast) {
  // b is used by n0 and n2: its gradient is complete only after n0's backward, as is a's.
  GraphMaker maker;
  const ir::ValueId c = maker.parameter("c");
  const ir::ValueId b = maker.parameter("b");
  const ir::ValueId a = maker.parameter("a");
  const ir::ValueId x = maker.node("n0", {maker.input("x"), a, b});
  maker.graph.outputs = {maker.node("n2", {maker.node("n1", {x, c}), b})};
  const Reduction reduction{.parameters = {c, b, a}, .ranks = {0, 1}, .stages = {0}};
  const std::vector<Bucket> found = buckets(reduction, maker.graph);
  EXPECT_EQ(parameters_of(found), (std::vector<std::vector<size_t>>{{0, 1, 2}}));
  EXPECT_EQ(found[0].bytes, 3 * 4 * 4);
}

TEST(Buckets, HoldUpToTheirSizeOrOneLargerGradient) {
  const auto found = buckets({{DType::float32, kBucketBytes / 2},
                              {DType::float32, kBucketBytes / 2},
                              {DType::float32, 1},
                              {DType::float32, 3 * kBucketBytes},
                              {DType::float32, 1}});
  EXPECT_EQ(parameters_of(found), (std::vector<std::vector<size_t>>{{0, 1}, {2}, {3}, {4}}));
}

TEST(Buckets, HoldAsMuchAsTheyAreToldTo) {
  const std::vector<Gradient> gradients(4, {DType::float32, 12});
  EXPECT_EQ(parameters_of(buckets(gradients, /*bucket_bytes=*/24)),
            (std::vector<std::vector<size_t>>{{0, 1}, {2, 3}}));
}

TEST(Buckets, HoldOneDtypeEachHoweverTheyTakeTurns) {
  const auto found = buckets(
      {{DType::float32, 4}, {DType::bfloat16, 2}, {DType::float32, 4}, {DType::bfloat16, 2}});
  EXPECT_EQ(parameters_of(found), (std::vector<std::vector<size_t>>{{0, 2}, {1, 3}}));
}

TEST(Buckets, HaveShardsOfWholeNumbersForAllRanks) {
  EXPECT_EQ(shard_size(12, 4), 3);
  EXPECT_EQ(shard_size(13, 4), 4);
  // Seven numbers of two bytes for two ranks: four each, of which the last is nobody's.
  EXPECT_EQ(shard_bytes({.parameters = {0}, .bytes = 14}, DType::bfloat16, 2), 8);
}

TEST(Buckets, AreFewHoweverMuchThereIs) {
  // 4,000 full buckets: 62 fit into a 64th of that.
  const auto found = buckets(std::vector<Gradient>(4'000, {DType::float32, kBucketBytes}));
  EXPECT_EQ(found.size(), 65);
  EXPECT_EQ(found[0].bytes, 62 * kBucketBytes);
}

}  // namespace
}  // namespace rannc::plan
