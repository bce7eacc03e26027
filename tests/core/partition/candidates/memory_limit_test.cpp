#include "partition/candidates/memory_limit.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace rannc::partition {
namespace {

using ::testing::ElementsAre;

/// A stage on each of `ranks`, which holds 30 bytes of parameters and 50 of the optimizer's state.
plan::Plan plan_on(const std::vector<std::vector<plan::Rank>>& ranks, int64_t step_peak_bytes,
                   int64_t peak_bytes = 0) {
  plan::Plan plan;
  for (const std::vector<plan::Rank>& of_stage : ranks) {
    plan::Stage& stage = plan.stages.emplace_back();
    stage.ranks = of_stage;
    stage.predicted = {.param_bytes = 30, .optimizer_bytes = 50, .peak_bytes = peak_bytes};
    plan.step.peak_bytes.push_back(step_peak_bytes);
  }
  return plan;
}

TEST(MemoryLimit, IsForWhatAStepHoldsOnTheFullestRank) {
  plan::Plan plan = plan_on({{0}, {1}}, 90);
  plan.step.peak_bytes[1] = 100;
  EXPECT_TRUE((MemoryLimit{.limit_bytes = 100}).fits(plan));
  EXPECT_FALSE((MemoryLimit{.limit_bytes = 99}).fits(plan));
}

TEST(MemoryLimit, ARunNeedsMemoryForTheRestOfTheModelToo) {
  const auto fits = [](double limit_bytes, const std::vector<std::vector<plan::Rank>>& ranks) {
    return MemoryLimit{.limit_bytes = limit_bytes, .held_bytes = 100}.fits_beside_model(
        plan_on(ranks, 300));
  };
  // 300 bytes, of which 50 are the optimizer's, and 70 of other parameters.
  EXPECT_TRUE(fits(320, {{0}, {1}}));
  EXPECT_FALSE(fits(319, {{0}, {1}}));
  // Two stages on each rank: all of the optimizer's, and 40 of other parameters.
  EXPECT_TRUE(fits(240, {{0}, {1}, {0}, {1}}));
  EXPECT_FALSE(fits(239, {{0}, {1}, {0}, {1}}));
}

TEST(MemoryLimit, IsTightWhereAFasterPlanNeedsMoreOrThePlanIsHalfOfIt) {
  const MemoryLimit memory{.limit_bytes = 100};
  EXPECT_FALSE(memory.is_tight({plan_on({{0}}, 0, 50), {{.arrangement = {}, .peak_bytes = 100}}}));
  EXPECT_TRUE(memory.is_tight({plan_on({{0}}, 0, 51), {}}));
  EXPECT_TRUE(memory.is_tight({plan_on({{0}}, 0, 50), {{.arrangement = {}, .peak_bytes = 101}}}));
}

TEST(MemoryLimit, WhereAStepDoesNotFitASmallerPlanIsSearched) {
  const MemoryLimit memory{.device_bytes = 100, .limit_bytes = 100};
  std::vector<int> asked;
  /// What is found among plans of which a step holds `step_peaks`, by their bytes by the account.
  const auto found = [&](const std::map<int, int>& step_peaks) {
    asked.clear();
    const auto search = [&](const Request& request) -> std::optional<Found> {
      asked.push_back(static_cast<int>(std::lround(100 * (1 - request.memory_margin))));
      auto next = step_peaks.upper_bound(asked.back());
      if (next == step_peaks.begin()) return std::nullopt;
      --next;
      return Found{plan_on({{0}}, next->second, next->first), {}};
    };
    const std::optional<Found> smaller = smaller_until_it_fits(memory, {}, search);
    return smaller ? smaller->plan.step.peak_bytes[0] : -1;
  };
  EXPECT_EQ(found({{100, 100}}), 100);
  EXPECT_THAT(asked, ElementsAre(100));
  EXPECT_EQ(found({{100, 125}, {80, 100}}), 100);
  EXPECT_THAT(asked, ElementsAre(100, 80));
  EXPECT_EQ(found({{100, 125}, {90, 95}}), -1);
  EXPECT_THAT(asked, ElementsAre(100, 80));
  EXPECT_EQ(found({{100, 200}, {50, 125}, {40, 60}}), 60);
  EXPECT_THAT(asked, ElementsAre(100, 50, 40));
}

}  // namespace
}  // namespace rannc::partition
