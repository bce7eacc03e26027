#include "rannc/partition/allowed.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using plan::Schedule;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using Replicas = std::vector<int>;

plan::Plan plan_of(const Replicas& replicas, int64_t micro_batches = 1,
                   Schedule schedule = Schedule::gpipe, int interleave = 1) {
  plan::Plan plan;
  for (const int count : replicas) {
    plan.stages.emplace_back().ranks.resize(static_cast<size_t>(count));
  }
  plan.micro_batches = micro_batches;
  plan.schedule = schedule;
  plan.interleave = interleave;
  return plan;
}

/// Answers with plans that take `times` by the replicas of their stages; what is not there does not
/// fit.
struct Search {
  std::map<Replicas, int64_t> times;
  std::vector<Replicas> asked = {};

  auto function() {
    return [this](const Request& request) {
      const Replicas replicas = request.force.replicas.value_or(
          Replicas(static_cast<size_t>(request.force.stages.value_or(0)), 1));
      asked.push_back(replicas);
      if (replicas.size() > 5) throw ConfigError("more stages than blocks");
      plan::Plan plan = plan_of(replicas);
      plan.feasible = times.contains(replicas);
      if (plan.feasible) plan.iteration_ns = times[replicas];
      return plan;
    };
  }
};

Request request_with(Force force = {}) {
  return {.global_batch = 24,
          .micro_batches = {1, 2, 4, 8},
          .schedules = {Schedule::gpipe, Schedule::interleaved},
          .max_interleave = 4,
          .force = std::move(force)};
}

TEST(Allowed, WithoutLimitsNothingIsAsked) {
  Search search;
  EXPECT_EQ(narrowed(request_with(), {}, plan_of({3}), 3, search.function()), request_with());
  EXPECT_TRUE(search.asked.empty());
}

TEST(Allowed, TheBestPlanStaysWhereItIsAllowedAndItsNeighboursAreAllowedToo) {
  Search search;
  const Allowed allowed{.least_rows = 3, .powers_of_two = true};
  const Request found = narrowed(request_with(), allowed, plan_of({2, 1}, 4), 3, search.function());
  EXPECT_EQ(found.force.stages, 2);
  EXPECT_EQ(found.force.replicas, (Replicas{2, 1}));
  EXPECT_EQ(found.force.schedule, Schedule::gpipe);
  EXPECT_FALSE(found.force.interleave);
  EXPECT_THAT(found.micro_batches, ElementsAre(1, 2, 4));  // 24 rows / 8 / 2 replicas is one row

  const plan::Plan interleaved = plan_of({1, 1, 1, 1}, 1, Schedule::interleaved, 2);
  const Request other = narrowed(request_with(), allowed, interleaved, 2, search.function());
  EXPECT_EQ(other.force.schedule, Schedule::interleaved);
  EXPECT_EQ(other.force.interleave, 2);
  EXPECT_TRUE(search.asked.empty());
}

TEST(Allowed, ElseTheFastestOfAllThatAre) {
  Search search{{{{3}, 1}, {{2, 1}, 5}, {{1, 2}, 4}, {{1, 1, 1}, 6}, {{2}, 7}, {{1, 1}, 8}}};
  const Request found =
      narrowed(request_with(), {.powers_of_two = true}, plan_of({3}), 3, search.function());
  EXPECT_EQ(found.force.replicas, (Replicas{1, 2}));
  EXPECT_THAT(search.asked,
              UnorderedElementsAre(Replicas{1}, Replicas{2}, Replicas{1, 1}, Replicas{1, 2},
                                   Replicas{2, 1}, Replicas{1, 1, 1}));
}

TEST(Allowed, SharesHaveSoManyRows) {
  Search search{{{{1}, 9}, {{2}, 5}, {{3}, 1}}};
  const Request found =
      narrowed(request_with(), {.least_rows = 12}, plan_of({3}), 3, search.function());
  EXPECT_EQ(found.force.replicas, Replicas{2});
  EXPECT_THAT(found.micro_batches, ElementsAre(1));
}

TEST(Allowed, OnManyRanksAllStagesAreAlike) {
  Search search{{{{3, 3, 3}, 2}, {{4, 4}, 3}}};
  const int ranks = kMostRanksInAllWays + 1;
  const Request found =
      narrowed(request_with(), {.powers_of_two = true}, plan_of({9}), ranks, search.function());
  EXPECT_EQ(found.force.replicas, (Replicas{4, 4}));
  for (const Replicas& replicas : search.asked) {
    EXPECT_THAT(replicas, ::testing::Each(replicas[0]));
    EXPECT_LE(std::accumulate(replicas.begin(), replicas.end(), 0), ranks);
  }
}

TEST(Allowed, TheFewestStagesThatFit) {
  Search search{{{{1, 1}, 5}, {{1, 1, 1}, 1}}};
  const Request found =
      narrowed(request_with(), {.fewest_stages = true}, plan_of({1, 1, 1}), 3, search.function());
  EXPECT_EQ(found.force.stages, 2);
  EXPECT_THAT(search.asked, ElementsAre(Replicas{1}, Replicas{1, 1}));
}

TEST(Allowed, WhatIsForcedStaysForced) {
  Search search{{{{2, 1}, 5}, {{1, 2}, 1}}};
  const Force force{.replicas = Replicas{2, 1}};
  const Request found = narrowed(request_with(force), {.least_rows = 10, .fewest_stages = true},
                                 plan_of({2, 1}, 4), 3, search.function());
  EXPECT_EQ(found.force.replicas, (Replicas{2, 1}));
  EXPECT_THAT(found.micro_batches, ElementsAre(1));
  EXPECT_THAT(search.asked, ElementsAre(Replicas{2, 1}));
}

TEST(Allowed, WhatTheRequestSaysBesidesStays) {
  Search search{{{{1}, 1}}};
  Request request = request_with();
  request.master_bytes_per_param_byte = 0.5;
  request.shard_optimizer = true;
  request.memory_margin = 0.25;
  const Request found =
      narrowed(request, {.powers_of_two = true}, plan_of({3}), 3, search.function());
  request.force = found.force;
  EXPECT_EQ(found, request);
}

TEST(Allowed, WhereNoAllowedPlanFitsTheErrorNamesTheSettings) {
  Search search{{{{1}, 1}}};
  const auto narrow = [&](bool feasible) {
    plan::Plan plan = plan_of({1});
    plan.feasible = feasible;
    return narrowed(request_with(), {.least_rows = 100}, plan, 3, search.function());
  };
  try {
    (void)narrow(true);
    FAIL() << "a request with which nothing fits";
  } catch (const InfeasibleError& error) {
    EXPECT_STREQ(error.what(),
                 "no plan fits with min_pipeline_bs = 100, limit_dev_num_pot = False and "
                 "dp_search_all = True");
  }
  // Where nothing fits without the limits either, the search has said why.
  EXPECT_EQ(narrow(false), request_with());
}

}  // namespace
}  // namespace rannc::partition
