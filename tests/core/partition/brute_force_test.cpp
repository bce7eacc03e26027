#include "partition/brute_force.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "partition/problems.h"
#include "partition/random_problem.h"
#include "rannc/partition/evaluate.h"
#include "rannc/partition/planner.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using brute::Choice;
using brute::Mask;
using testing::brute_force;
using testing::Optimum;
using testing::Problem;
using testing::random_problem;

/// A plan of the space, without a look at memory.
Choice random_choice(brute::Judge& judge, const Problem& problem, std::mt19937_64& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const auto cuts = testing::all_cuts(judge.tables(), brute::kMostNodes);
  const cost::Cluster& cluster = problem.cluster;
  while (true) {
    Choice choice;
    choice.stages = cuts[static_cast<size_t>(draw(0, int64_t(cuts.size()) - 1))];
    const auto stages = static_cast<int>(choice.stages.size());
    const auto m = draw(1, problem.request.global_batch);
    const auto v = static_cast<int>(draw(1, 4));
    if (stages % v != 0 || stages / v > cluster.ranks()) continue;
    if (v > 1 && (stages / v < 2 || m % (stages / v) != 0)) continue;
    const auto schedule = v > 1             ? plan::Schedule::interleaved
                          : draw(0, 1) == 0 ? plan::Schedule::gpipe
                                            : plan::Schedule::one_f_one_b;
    choice.shape = {schedule, stages, stages / v, m};
    int first = cluster.devices_of(0);
    int second = cluster.hosts > 1 ? cluster.devices_of(1) : 0;
    bool fits = true;
    for (size_t g = 0; g < size_t(stages / v); ++g) {
      const auto a = int(draw(0, first)), b = int(draw(0, second));
      choice.replicas[g] = a + b;
      choice.on_first_host[g] = a;
      first -= a;
      second -= b;
      fits &= a + b > 0 && m * (a + b) <= problem.request.global_batch;
    }
    if (!fits) continue;
    choice.recompute = uint32_t(draw(0, (1 << stages) - 1));
    return choice;
  }
}

/// Of both versions of the graph and the request: the second has the host's times, too, and counts
/// memory by moments.
class BruteForceOfVersion : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, BruteForceOfVersion, ::testing::Values(1, 2));

TEST_P(BruteForceOfVersion, AgreesWithTheEvaluatorOnEveryPlan) {
  std::mt19937_64 random(1);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Problem problem = random_problem(seed, {.interleaved = true,
                                            .version = GetParam(),
                                            .uneven = seed % 4 == 3,
                                            .speeds = seed % 8 > 4});
    problem.request.schedules = {plan::Schedule::gpipe, plan::Schedule::one_f_one_b,
                                 plan::Schedule::interleaved};
    problem.request.max_interleave = 4;
    problem.request.micro_batches.clear();
    for (int64_t m = 1; m <= problem.request.global_batch; ++m) {
      problem.request.micro_batches.push_back(m);
    }
    problem.request.recompute = Recompute::stage;
    problem.request.force = {};
    brute::Judge judge(problem.profile, problem.cluster, problem.request);
    const Choice choice = random_choice(judge, problem, random);
    const Evaluation verdict =
        evaluate(problem.profile, problem.cluster, problem.request, judge.to_plan(choice));
    ASSERT_EQ(verdict.stages.size(), choice.stages.size()) << "seed " << seed;
    const double time_ns = judge.iteration_ns(choice);
    EXPECT_NEAR(time_ns, verdict.iteration_ns, 1e-9 * time_ns) << "seed " << seed;
    EXPECT_LE(judge.work_bound(choice), time_ns * (1 + 1e-12)) << "seed " << seed;
    EXPECT_LE(judge.simulated_bound(choice), time_ns * (1 + 1e-12)) << "seed " << seed;
    bool fits = true;
    for (int s = 0; s < choice.shape.stages; ++s) {
      const double peak = judge.peak_bytes(choice, s % choice.shape.groups);
      EXPECT_NEAR(peak, verdict.stages[size_t(s)].peak_bytes, 1e-9 * peak) << "seed " << seed;
      fits &= peak <= judge.tables().memory_limit();
    }
    EXPECT_EQ(verdict.problems.empty(), fits)
        << "seed " << seed << ": " << (fits ? verdict.problems[0] : "");
  }
}

TEST(BruteForce, CountsTheCutsOfAChainAndOfIndependentNodes) {
  cost::GraphProfile profile = testing::chain({{}, {}, {}, {}});
  const cost::Cluster cluster = testing::cluster(1, 2);
  const Request request;
  // A chain of 4 may be cut or not at 3 places.
  EXPECT_EQ(testing::all_cuts({profile, cluster, request}, 4).size(), 8u);
  // Four independent nodes: the ordered Bell number.
  for (cost::ProfileNode& node : profile.nodes) node.inputs = {{true, 0, 0}};
  EXPECT_EQ(testing::all_cuts({profile, cluster, request}, 4).size(), 75u);
  // Two of them together: three things to order.
  profile.nodes[0].group = profile.nodes[3].group = "g";
  EXPECT_EQ(testing::count_cuts({profile, cluster, request}, 1000), 13);
}

TEST(BruteForce, FindsWhatNoListOfItsPlansBeats) {
  // Every random plan that fits is at most as fast as the optimum, which fits.
  std::mt19937_64 random(2);
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Problem problem = random_problem(seed, {.most_nodes = 6, .interleaved = true});
    const Optimum optimum = brute_force(problem.profile, problem.cluster, problem.request);
    if (optimum.feasible) {
      const Evaluation verdict =
          evaluate(problem.profile, problem.cluster, problem.request, optimum.plan);
      ASSERT_TRUE(verdict.problems.empty()) << "seed " << seed << ": " << verdict.problems[0];
      EXPECT_NEAR(verdict.iteration_ns, optimum.iteration_ns, 1e-9 * verdict.iteration_ns);
    }
    brute::Judge judge(problem.profile, problem.cluster, problem.request);
    for (int trial = 0; trial < 40; ++trial) {
      const plan::Plan plan = judge.to_plan(random_choice(judge, problem, random));
      const Evaluation verdict = evaluate(problem.profile, problem.cluster, problem.request, plan);
      if (!verdict.problems.empty()) continue;
      ASSERT_TRUE(optimum.feasible) << "seed " << seed;
      EXPECT_GE(verdict.iteration_ns, optimum.iteration_ns * (1 - 1e-9)) << "seed " << seed;
    }
  }
}

TEST_P(BruteForceOfVersion, ThePlannerFindsTheOptimum) {
  // A sample of what planner_quality does at length; there the share must be 99.5 %.
  int feasible = 0, equal = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Problem problem = random_problem(
        seed, {.most_nodes = 6, .interleaved = true, .version = GetParam(), .uneven = seed >= 100});
    const Optimum optimum = brute_force(problem.profile, problem.cluster, problem.request);
    plan::Plan plan;
    try {
      plan = make_plan(problem.profile, problem.cluster, problem.request);
    } catch (const ConfigError&) {  // more stages are forced than can be
      plan.feasible = false;
    }
    ASSERT_EQ(plan.feasible, optimum.feasible) << "seed " << seed;
    if (!plan.feasible) continue;
    // Rounded as the planner's.
    const auto best_ns = std::llround(optimum.iteration_ns);
    EXPECT_GE(plan.iteration_ns, best_ns) << "seed " << seed;
    EXPECT_LE(static_cast<double>(plan.iteration_ns), 1.01 * static_cast<double>(best_ns))
        << "seed " << seed;
    ++feasible;
    equal += plan.iteration_ns == best_ns ? 1 : 0;
  }
  EXPECT_GE(equal, feasible - 1);
}

// A stage's time is that of its slowest rank, so which hosts have which stage is a choice.
TEST_P(BruteForceOfVersion, ThePlannerFindsTheOptimumOfHostsOfOtherSpeeds) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Problem problem = random_problem(seed, {.most_nodes = 6,
                                                  .most_ranks = 4,
                                                  .version = GetParam(),
                                                  .uneven = seed % 2 == 1,
                                                  .speeds = true});
    if (problem.cluster.speed_of_host.empty()) continue;
    const Optimum optimum = brute_force(problem.profile, problem.cluster, problem.request);
    plan::Plan plan;
    try {
      plan = make_plan(problem.profile, problem.cluster, problem.request);
    } catch (const ConfigError&) {  // more stages are forced than can be
      plan.feasible = false;
    }
    ASSERT_EQ(plan.feasible, optimum.feasible) << "seed " << seed;
    if (!plan.feasible) continue;
    const double found_ns =
        evaluate(problem.profile, problem.cluster, problem.request, plan).iteration_ns;
    EXPECT_NEAR(found_ns, optimum.iteration_ns, 1e-9 * found_ns) << "seed " << seed;
    ++feasible;
  }
  EXPECT_GT(feasible, 150);
}

/// The least time of all plans without recompute, each judged by the evaluator: cuts, then how many
/// ranks of each host each stage has.
class OfSeveralHosts {
 public:
  explicit OfSeveralHosts(const Problem& problem)
      : problem_(problem), judge_tables_(problem.profile, problem.cluster, problem.request) {
    for (int host = 0; host < problem.cluster.hosts; ++host) {
      left_.push_back(problem.cluster.devices_of(host));
    }
  }

  double least_ns() {
    const size_t most = problem_.request.force.stages.value_or(brute::kMostNodes);
    for (const std::vector<Mask>& cut : testing::all_cuts(judge_tables_, most)) {
      plan_.stages.clear();
      for (const Mask mask : cut) {
        plan::Stage& stage = plan_.stages.emplace_back();
        for (size_t k = 0; k < problem_.profile.nodes.size(); ++k) {
          if ((mask >> k & 1) != 0) stage.nodes.push_back(problem_.profile.nodes[k].name);
        }
      }
      place(0, 0);
    }
    return least_ns_;
  }

 private:
  void place(size_t stage, int host) {
    if (stage == plan_.stages.size()) return judge();
    if (host == problem_.cluster.hosts) {
      if (!plan_.stages[stage].ranks.empty()) place(stage + 1, 0);
      return;
    }
    std::vector<plan::Rank>& ranks = plan_.stages[stage].ranks;
    const size_t before = ranks.size();
    int first = 0;
    for (int other = 0; other < host; ++other) first += problem_.cluster.devices_of(other);
    int& left = left_[static_cast<size_t>(host)];
    const int all = left, used = problem_.cluster.devices_of(host) - all;
    for (int count = 0; count <= all; ++count) {
      if (count > 0) ranks.push_back(first + used + count - 1);
      left = all - count;
      place(stage, host + 1);
    }
    left = all;
    ranks.resize(before);
  }

  void judge() {
    for (const int64_t m : allowed_micro_batches(problem_.request)) {
      for (const plan::Schedule schedule : problem_.request.schedules) {
        plan_.micro_batches = m;
        plan_.schedule = schedule;
        const Evaluation verdict =
            evaluate(problem_.profile, problem_.cluster, problem_.request, plan_);
        if (verdict.problems.empty()) least_ns_ = std::min(least_ns_, verdict.iteration_ns);
      }
    }
  }

  const Problem& problem_;
  brute::Tables judge_tables_;
  std::vector<int> left_;  // devices of each host
  plan::Plan plan_;
  double least_ns_ = std::numeric_limits<double>::infinity();
};

TEST(BruteForce, ThePlannerFindsTheOptimumOfThreeHostsOfOtherSpeeds) {
  constexpr uint64_t kSeeds = 24;
  int feasible = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Problem problem = random_problem(seed, {.most_nodes = 4, .most_ranks = 4});
    const bool large = seed % 4 == 3;
    const std::vector<int> devices = large ? std::vector{8, 4, 1} : std::vector{2, 2, 1};
    cost::Cluster& cluster = problem.cluster;
    cluster.hosts = 3;
    cluster.devices_per_host = devices[0];
    cluster.device_memory_bytes = 1e15;
    cluster.inter_host = {cluster.intra_host.bandwidth_bytes_per_s / 4,
                          cluster.intra_host.latency_ns + 100};
    cluster.host_of_rank.clear();
    for (int host = 0; host < 3; ++host) {
      cluster.host_of_rank.insert(cluster.host_of_rank.end(), size_t(devices[size_t(host)]), host);
    }
    std::mt19937_64 random(seed);
    for (int host = 0; host < 3; ++host) {
      cluster.speed_of_host.push_back(std::vector{1.0, 0.5, 0.2}[random() % 3]);
    }
    problem.request.recompute = Recompute::never;
    problem.request.force = {};
    if (large) problem.request.force.stages = 2;
    problem.request.micro_batches = {1, 4};
    const double least_ns = OfSeveralHosts(problem).least_ns();
    plan::Plan plan;
    try {
      plan = make_plan(problem.profile, cluster, problem.request);
    } catch (const ConfigError&) {  // more stages are forced than can be
      plan.feasible = false;
    }
    ASSERT_EQ(plan.feasible, std::isfinite(least_ns)) << "seed " << seed;
    if (!plan.feasible) continue;
    ++feasible;
    const double found_ns = evaluate(problem.profile, cluster, problem.request, plan).iteration_ns;
    EXPECT_NEAR(found_ns, least_ns, 1e-9 * least_ns) << "seed " << seed;
  }
  EXPECT_GT(feasible, static_cast<int>(kSeeds) * 2 / 3);
}

// Each rank counted as a host of its own where hosts had other numbers of ranks, or where ranks
// were dealt out.
TEST(BruteForce, RanksThatAreDealtOutAreNumberedByHost) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Problem problem = random_problem(seed, {.most_nodes = 6, .uneven = seed % 2 == 1});
    if (problem.cluster.hosts == 1) continue;
    const int ranks = problem.cluster.ranks();
    const Optimum optimum = brute_force(problem.profile, problem.cluster, problem.request);
    std::vector<int> dealt;  // 0, 1, 0, 1, and what is left
    for (int k = 0; k < ranks; ++k) {
      for (int host = 0; host < 2; ++host) {
        if (k < problem.cluster.devices_of(host)) dealt.push_back(host);
      }
    }
    problem.cluster.host_of_rank = dealt;
    if (!optimum.feasible) continue;
    const plan::Plan plan = make_plan(problem.profile, problem.cluster, problem.request);
    ASSERT_TRUE(plan.feasible) << "seed " << seed << ": " << plan.reason;
    const Evaluation verdict = evaluate(problem.profile, problem.cluster, problem.request, plan);
    EXPECT_EQ(plan.iteration_ns, std::llround(verdict.iteration_ns)) << "seed " << seed;
    // Shares go to ascending ranks, so a stage on both hosts may have them in another order.
    bool on_one_host = true;
    for (const plan::Stage& stage : plan.stages) {
      for (const plan::Rank rank : stage.ranks) {
        on_one_host &= dealt[size_t(rank)] == dealt[size_t(stage.ranks[0])];
      }
    }
    if (!on_one_host) continue;
    EXPECT_LE(static_cast<double>(plan.iteration_ns), 1.01 * optimum.iteration_ns + 1)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace rannc::partition
