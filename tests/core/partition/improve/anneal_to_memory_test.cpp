#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "partition/problems.h"
#include "rannc/partition/evaluate.h"
#include "rannc/partition/planner.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using testing::chain;
using testing::cluster;
using testing::Link;

constexpr int kStages = 4;
constexpr size_t kNodes = 12;

/// Twelve nodes of different lengths, cut into four stages on two ranks.
struct Problem {
  cost::GraphProfile profile;
  Request request;
  std::vector<double>
      bytes;  ///< [node] that a rank holds in a step, as nobody but the caller knows

  explicit Problem(unsigned seed) {
    std::mt19937 random(seed);
    const auto between = [&](int low, int high) {
      return static_cast<double>(std::uniform_int_distribution<>(low, high)(random));
    };
    std::vector<Link> links;
    for (size_t node = 0; node < kNodes; ++node) {
      links.push_back({.time_ns = between(50'000, 200'000), .bytes_per_row = between(0, 1000)});
      bytes.push_back(between(1, 20));
    }
    profile = chain(links);
    request.global_batch = 8;
    request.schedules = {plan::Schedule::interleaved};
    request.max_interleave = 2;
    request.force = {.stages = kStages, .micro_batches = 4};
  }

  [[nodiscard]] double step_bytes(const plan::Plan& plan) const {
    std::vector<double> sums(2);
    for (const plan::Stage& stage : plan.stages) {
      for (const std::string& name : stage.nodes) {
        sums[static_cast<size_t>(stage.ranks[0])] += bytes[std::stoul(name.substr(1))];
      }
    }
    return std::ranges::max(sums);
  }

  [[nodiscard]] plan::Plan planned(double limit) const {
    PlannerOptions options = {.exactly = false};
    options.room = {.added = 1.5,
                    .step_bytes = [this](const plan::Plan& plan) { return step_bytes(plan); },
                    .step_limit_bytes = limit};
    return make_plan(profile, cluster(1, 2), request, options);
  }

  /// The least time of all ways to cut that hold no more than that; infinite where there is none.
  [[nodiscard]] double least_ns(double limit) const {
    plan::Plan plan = planned(std::numeric_limits<double>::infinity());
    double least = std::numeric_limits<double>::infinity();
    for (size_t a = 1; a < kNodes; ++a) {
      for (size_t b = a + 1; b < kNodes; ++b) {
        for (size_t c = b + 1; c < kNodes; ++c) {
          const std::vector<size_t> borders{0, a, b, c, kNodes};
          for (size_t s = 0; s < kStages; ++s) {
            plan.stages[s].nodes.clear();
            for (size_t node = borders[s]; node < borders[s + 1]; ++node) {
              plan.stages[s].nodes.push_back(profile.nodes[node].name);
            }
          }
          if (step_bytes(plan) > limit) continue;
          least = std::min(least, evaluate(profile, cluster(1, 2), request, plan).iteration_ns);
        }
      }
    }
    return least;
  }
};

TEST(Squeeze, FindsTheFastestPlanThatHoldsNoMore) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    const Problem problem(seed);
    const plan::Plan free = problem.planned(std::numeric_limits<double>::infinity());
    for (const double share : {0.99, 0.95, 0.9, 0.85}) {
      const double limit = share * problem.step_bytes(free);
      const double least = problem.least_ns(limit);
      const plan::Plan found = problem.planned(limit);
      ASSERT_TRUE(found.feasible);
      if (least == std::numeric_limits<double>::infinity()) {
        EXPECT_GT(problem.step_bytes(found), limit);
        continue;
      }
      EXPECT_LE(problem.step_bytes(found), limit) << "seed " << seed << ", share " << share;
      EXPECT_NEAR(static_cast<double>(found.iteration_ns), least, 1) << seed << ' ' << share;
    }
  }
}

TEST(Squeeze, IsTheSameEveryTime) {
  const Problem problem(3);
  const double limit =
      0.95 * problem.step_bytes(problem.planned(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(plan::to_json(problem.planned(limit)), plan::to_json(problem.planned(limit)));
}

TEST(Squeeze, LeavesPinnedNodesWhereTheyAre) {
  const Problem problem(5);
  PlannerOptions options = {.pins = {{"n1", 0}, {"n10", -1}}, .exactly = false};
  options.room = {.added = 1.5,
                  .step_bytes = [&](const plan::Plan& plan) { return problem.step_bytes(plan); },
                  .step_limit_bytes = 1};
  const plan::Plan plan = make_plan(problem.profile, cluster(1, 2), problem.request, options);
  ASSERT_TRUE(plan.feasible);
  const auto holds = [&](size_t stage, const std::string& name) {
    return std::ranges::count(plan.stages[stage].nodes, name) == 1;
  };
  EXPECT_TRUE(holds(0, "n1") && holds(3, "n10"));
}

TEST(Squeeze, ErrorsOfTheCallerComeThrough) {
  const Problem problem(1);
  PlannerOptions options = {.exactly = false};
  options.room = {.added = 1.5,
                  .step_bytes = [](const plan::Plan&) -> double { throw PlanError("refused"); }};
  EXPECT_THROW((void)make_plan(problem.profile, cluster(1, 2), problem.request, options),
               PlanError);
}

}  // namespace
}  // namespace rannc::partition
