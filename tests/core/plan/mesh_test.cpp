#include "rannc/plan/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "rannc/plan/rows.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

TEST(Mesh, OfAStageHasThePlacesOfItsAxes) {
  Stage stage;
  stage.ranks = {4, 5, 2, 3};
  stage.axes = {.x = 1, .y = 2};
  const StageMesh mesh = mesh_of(stage);
  EXPECT_EQ(mesh.replicas(), 2);
  EXPECT_EQ(mesh.replica_of(3), 1);
  EXPECT_EQ(mesh.place_of(3), 1);
}

TEST(Mesh, OfAStageHasOnePlaceInEachReplica) {
  Stage stage;
  stage.ranks = {4, 2, 7};
  const StageMesh mesh = mesh_of(stage);
  EXPECT_EQ(mesh.mesh(), (Mesh{.replicas = 3, .y = 1, .x = 1}));
  EXPECT_EQ(mesh.places(), 1);
  EXPECT_EQ(mesh.replica_of(2), 1);
  EXPECT_EQ(mesh.place_of(2), 0);
  EXPECT_EQ(mesh.rank(2, 0), 7);
  EXPECT_EQ(mesh.ranks_of_place(0), stage.ranks);
  EXPECT_TRUE(std::ranges::equal(mesh.ranks_of_replica(1), std::vector<Rank>{2}));
}

TEST(Mesh, KnowsNoRankOfOtherStages) {
  const std::vector<Rank> ranks{1, 3};
  EXPECT_EQ(mesh_of(ranks).position_of(2), std::nullopt);
  EXPECT_EQ(mesh_of(ranks).replica_of(2), std::nullopt);
  EXPECT_EQ(mesh_of(ranks).place_of(2), std::nullopt);
}

TEST(Mesh, NumbersRanksByReplicaThenYThenX) {
  // (i * y + b) * x + a with y = 3, x = 2: replica 1, place (a, b) = (1, 2) is (3 + 2) * 2 + 1
  // = 11.
  std::vector<Rank> ranks;
  for (Rank rank = 20; rank < 32; ++rank) ranks.push_back(rank);
  const StageMesh mesh(ranks, {.replicas = 2, .y = 3, .x = 2});
  EXPECT_EQ(mesh.rank(1, 2 * 2 + 1), 31);
  EXPECT_EQ(mesh.position_of(31), 11);
  EXPECT_EQ(mesh.replica_of(31), 1);
  EXPECT_EQ(mesh.place_of(31), 5);
  EXPECT_TRUE(
      std::ranges::equal(mesh.ranks_of_replica(1), std::vector<Rank>{26, 27, 28, 29, 30, 31}));
  EXPECT_EQ(mesh.ranks_of_place(5), (std::vector<Rank>{25, 31}));
  for (const Rank rank : ranks) {
    EXPECT_EQ(mesh.rank(*mesh.replica_of(rank), *mesh.place_of(rank)), rank);
  }
}

TEST(Mesh, NeedsARankForEachPlaceOfEachReplica) {
  const std::vector<Rank> ranks{0, 1, 2};
  EXPECT_THROW(StageMesh(ranks, {.replicas = 2, .y = 2, .x = 1}), InternalError);
  EXPECT_THROW((void)mesh_of(ranks).rank(0, 1), InternalError);
  EXPECT_THROW((void)mesh_of(ranks).ranks_of_replica(3), InternalError);
}

TEST(Mesh, DealsRowsToReplicasAndNotToRanks) {
  const BatchSplit split = split_batch({3, 1, 2, 2}, 1);
  const std::vector<Rank> all{0, 1, 2, 3};
  const auto shares_of = [&](const std::vector<Rank>& ranks, int y) {
    return shares(split,
                  StageMesh(ranks, {.replicas = static_cast<int>(ranks.size()) / y, .y = y}));
  };
  using Shares = std::vector<std::vector<RowRange>>;
  // On all ranks in ascending order a replica takes the slices of its ranks: 3 + 1 and 2 + 2 rows.
  EXPECT_EQ(shares_of(all, 2), (Shares{{{0, 4}}, {{4, 8}}}));
  EXPECT_EQ(shares_of(all, 1), split.places);
  EXPECT_EQ(shares_of(all, 4), (Shares{{{0, 8}}}));
  // On other ranks the eight rows are dealt.
  EXPECT_EQ(shares_of({2, 3, 0, 1}, 2), (Shares{{{0, 4}}, {{4, 8}}}));
  EXPECT_EQ(shares_of({0, 2}, 2), (Shares{{{0, 8}}}));
}

}  // namespace
}  // namespace rannc::plan
