#include "rannc/plan/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

TEST(Deal, StartsTheLargerPartsWhereItIsTold) {
  // 8 over 3: two parts get a third row, beginning with part 2, then round to part 0.
  EXPECT_EQ(deal(8, 3, 2), (std::vector<int64_t>{3, 2, 3}));
  EXPECT_EQ(deal(8, 3, 5), (std::vector<int64_t>{3, 2, 3}));
  EXPECT_EQ(deal(6, 3, 1), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(deal(1, 4, 0), (std::vector<int64_t>{1, 0, 0, 0}));
}

TEST(Deal, KeepsSumsOverSeveralDealsEqualToWithinOneRow) {
  for (int64_t parts = 1; parts <= 6; ++parts) {
    for (int64_t rows = 0; rows <= 13; ++rows) {
      std::vector<int64_t> sums(static_cast<size_t>(parts), 0);
      int64_t dealt = 0;
      for (int deals = 0; deals < 5; ++deals) {
        const std::vector<int64_t> sizes = deal(rows, parts, dealt);
        dealt += rows;
        for (size_t part = 0; part < sizes.size(); ++part) sums[part] += sizes[part];
        const auto [least, most] = std::ranges::minmax(sums);
        EXPECT_LE(most - least, 1) << rows << " rows to " << parts << " parts";
        EXPECT_EQ(std::reduce(sums.begin(), sums.end()), dealt);
      }
    }
  }
}

TEST(SplitBatch, MakesMicroBatchesOfTheSlicesInRankOrder) {
  // Rank 0 deals 3 rows from micro-batch 0: 2 + 1; rank 1 goes on at 3 mod 2 = 1: 1 + 2.
  const BatchSplit split = split_batch({3, 3}, 2);
  EXPECT_EQ(split.slices[0], (std::vector<RowRange>{{0, 2}, {2, 3}}));
  EXPECT_EQ(split.slices[1], (std::vector<RowRange>{{0, 1}, {1, 3}}));
  EXPECT_EQ(split.places[0], (std::vector<RowRange>{{0, 2}, {0, 1}}));
  EXPECT_EQ(split.places[1], (std::vector<RowRange>{{2, 3}, {1, 3}}));
  EXPECT_EQ(split.micro_rows, (std::vector<int64_t>{3, 3}));
}

TEST(SplitBatch, KeepsMicroBatchesEqualToWithinOneRow) {
  for (int64_t micro_batches = 1; micro_batches <= 6; ++micro_batches) {
    for (int64_t a = 0; a <= 7; ++a) {
      for (int64_t b = 0; b <= 7; ++b) {
        if (a + b + 5 < micro_batches) continue;
        const BatchSplit split = split_batch({a, 5, b}, micro_batches);
        const auto [least, most] = std::ranges::minmax(split.micro_rows);
        EXPECT_LE(most - least, 1);
        EXPECT_EQ(std::reduce(split.micro_rows.begin(), split.micro_rows.end()), a + 5 + b);
      }
    }
  }
}

TEST(SplitBatch, MakesNoEmptyMicroBatch) {
  const BatchSplit split = split_batch({1, 0, 1}, 3);
  EXPECT_EQ(split.micro_batches, 2);
  EXPECT_EQ(split.micro_rows, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(split.slices[2], (std::vector<RowRange>{{0, 0}, {0, 1}}));
}

TEST(SplitBatch, RefusesABatchWithoutRows) {
  try {
    (void)split_batch({0, 0}, 3);
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_STREQ(error.what(), "the batch has no rows on any of 2 ranks, so nothing can run");
  }
}

TEST(Shares, OfAStageOnAllRanksAreTheRanksOwnSlices) {
  const BatchSplit split = split_batch({4, 2, 3}, 2);
  EXPECT_EQ(shares(split, mesh_of(std::vector<Rank>{0, 1, 2})), split.places);
}

TEST(Shares, FollowTheOrderOfTheRanksGiven) {
  // Reversed ranks are no stage on all ranks in ascending order: the rows are dealt 2 + 1, then,
  // after 3 rows, 1 + 2.
  const BatchSplit split = split_batch({3, 3}, 2);
  const auto dealt = shares(split, mesh_of(std::vector<Rank>{1, 0}));
  EXPECT_EQ(dealt[0], (std::vector<RowRange>{{0, 2}, {0, 1}}));
  EXPECT_EQ(dealt[1], (std::vector<RowRange>{{2, 3}, {1, 3}}));
}

TEST(Shares, MayBeEmpty) {
  const auto dealt = shares(split_batch({1, 1, 0}, 2), mesh_of(std::vector<Rank>{0, 2}));
  // One row per micro-batch: replica 0 takes the first, replica 1 the second.
  EXPECT_EQ(dealt[0], (std::vector<RowRange>{{0, 1}, {0, 0}}));
  EXPECT_EQ(dealt[1], (std::vector<RowRange>{{1, 1}, {0, 1}}));
}

TEST(Shares, TileEveryMicroBatchForEveryReplicaCountAndRemainder) {
  for (int replicas = 1; replicas <= 6; ++replicas) {
    for (int64_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
      for (int64_t remainder = 0; remainder < replicas * micro_batches; ++remainder) {
        const BatchSplit split =
            split_batch({2 * replicas * micro_batches, remainder, 0, 0, 0, 0, 0}, micro_batches);
        std::vector<Rank> ranks(static_cast<size_t>(replicas));
        std::iota(ranks.begin(), ranks.end(), 0);
        const auto dealt = shares(split, mesh_of(ranks));
        for (size_t k = 0; k < split.micro_rows.size(); ++k) {
          int64_t row = 0;
          for (const auto& share : dealt) {
            EXPECT_EQ(share[k].begin, row);
            EXPECT_LE(share[k].size(), (split.micro_rows[k] + replicas - 1) / replicas);
            row = share[k].end;
          }
          EXPECT_EQ(row, split.micro_rows[k]);
        }
      }
    }
  }
}

TEST(Samples, AreNumbersInTheConcatenationOfAllLocalBatches) {
  // Rank 0 deals its rows 0 to 2 as 2 + 1, rank 1 its rows 3 to 5 as 1 + 2.
  const BatchSplit split = split_batch({3, 3}, 2);
  EXPECT_EQ(samples(split, 0, {0, 3}), (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(samples(split, 1, {0, 3}), (std::vector<int64_t>{2, 4, 5}));
  EXPECT_EQ(samples(split, 1, {1, 2}), (std::vector<int64_t>{4}));
  EXPECT_EQ(samples(split, 0, {2, 2}), std::vector<int64_t>{});
}

}  // namespace
}  // namespace rannc::plan
