#include "partition/stages/stage_solver.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include "partition/blocks/contract.h"
#include "partition/problems.h"
#include "rannc/partition/evaluate.h"

namespace rannc::partition {
namespace {

using testing::chain;
using testing::cluster;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A line of blocks with its costs; keeps what StageCosts refers to.
struct Problem {
  cost::GraphProfile profile;
  cost::Cluster machine;
  Request request;
  cost::GraphProfile blocks;
  BlockCosts block_costs;
  RangeCosts ranges;
  StageCosts costs;

  Problem(cost::GraphProfile nodes, const cost::Cluster& where, const Request& wanted, int64_t m)
      : profile(std::move(nodes)),
        machine(where),
        request(wanted),
        blocks(contract(profile, single_blocks(profile.nodes.size()), {})),
        block_costs(profile, single_blocks(profile.nodes.size())),
        ranges(blocks, request, block_costs),
        costs(ranges, machine, request, m) {}

  StageAnswer solve(const StageSearch& search) const {
    return solve_stages(costs, FrontBounds(costs), search);
  }
};

/// Every arrangement that obeys `search` and fits, in no useful order.
class BruteForce {
 public:
  BruteForce(const Problem& problem, const StageSearch& search)
      : problem_(problem), search_(search) {
    for (int idle = 0; idle < problem.machine.ranks(); ++idle) extend(0, idle);
  }

  std::map<int, double> best;  ///< closed form per number of stages

  double overall() const {
    double result = kInfinity;
    for (const auto& [stages, ns] : best) result = std::min(result, ns);
    return result;
  }

 private:
  void extend(int block, int rank) {
    const StageCosts& costs = problem_.costs;
    if (block == costs.blocks()) {
      if (rank == problem_.machine.ranks()) judge();
      return;
    }
    for (int last = block + 1; last <= costs.blocks(); ++last) {
      for (int replicas = 1; rank + replicas <= problem_.machine.ranks(); ++replicas) {
        if (replicas > costs.max_replicas() || (search_.one_replica && replicas > 1)) continue;
        for (const bool recompute : {false, true}) {
          if (costs.recompute() == (recompute ? Recompute::never : Recompute::always)) continue;
          stages_.push_back({block, last, replicas, rank, recompute});
          extend(last, rank + replicas);
          stages_.pop_back();
        }
      }
    }
  }

  void judge() {
    const auto count = static_cast<int>(stages_.size());
    if (search_.stages && *search_.stages != count) return;
    std::vector<int> replicas;
    for (int k = 0; k < count; ++k) {
      const StageChoice& stage = stages_[static_cast<size_t>(k)];
      replicas.push_back(stage.replicas);
      const int64_t held = in_flight(search_.schedule, problem_.costs.micro_batches(), count, k);
      if (problem_.costs.peak_bytes(stage.first, stage.last, stage.replicas, stage.recompute,
                                    held) > problem_.costs.available_bytes()) {
        return;
      }
    }
    if (search_.replicas && *search_.replicas != replicas) return;
    for (size_t block = 0; block < search_.pins.size(); ++block) {
      const int pin = search_.pins[block] == -1 ? count - 1 : search_.pins[block];
      if (pin < 0) continue;
      if (pin >= count) return;
      const StageChoice& stage = stages_[static_cast<size_t>(pin)];
      if (static_cast<int>(block) < stage.first || static_cast<int>(block) >= stage.last) return;
    }
    const double ns = closed_form(problem_.costs, stages_);
    const auto [place, added] = best.emplace(count, ns);
    if (!added) place->second = std::min(place->second, ns);
  }

  const Problem& problem_;
  const StageSearch& search_;
  std::vector<StageChoice> stages_;
};

Problem random_problem(std::mt19937& random) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const int nodes = draw(1, 7), hosts = draw(1, 2), devices = draw(1, hosts == 2 ? 2 : 5);
  // From "nothing fits" to "everything fits", most often in between.
  const double memory = draw(0, 5) == 0 ? 1e9 : draw(100, 600 * nodes);
  cost::Cluster machine = cluster(hosts, devices, memory);
  machine.links_per_host = draw(1, 2);
  Request request;
  request.global_batch = draw(1, 12);
  request.recompute = static_cast<Recompute>(draw(0, 2) == 0 ? draw(1, 2) : 0);
  request.reduction_buckets = draw(1, 3);
  cost::GraphProfile profile = testing::random_profile(random, nodes);
  if (draw(0, 2) == 0) {
    // Time does not depend on the rows and transfers are free: more stages on the same ranks are
    // faster, and only the memory of the stages in front of them speaks against that.
    machine.intra_host.latency_ns = machine.inter_host.latency_ns = 0;
    for (cost::ProfileNode& node : profile.nodes) {
      node.forward_ns[1] = node.forward_ns[0];
      node.backward_ns[1] = node.backward_ns[0];
      for (cost::ProfileOutput& output : node.outputs) output.size = {};
    }
    request.recompute = Recompute::never;
  }
  return {profile, machine, request, draw(1, static_cast<int>(request.global_batch))};
}

TEST(StageSolver, EqualsBruteForceOnThousandsOfRandomProblems) {
  std::mt19937 random(20240501);
  int feasible = 0, several_stages = 0, recomputed = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const Problem problem = random_problem(random);
    for (const plan::Schedule schedule : {plan::Schedule::gpipe, plan::Schedule::one_f_one_b}) {
      StageSearch search{.schedule = schedule};
      if (trial % 5 == 0) search.stages = 1 + trial % 3;
      if (trial % 7 == 0) search.one_replica = true;
      const BruteForce truth(problem, search);

      const StageAnswer answer = problem.solve(search);
      const double found =
          answer.candidates.empty() ? kInfinity : answer.candidates[0].closed_form_ns;
      ASSERT_EQ(answer.candidates.empty(), truth.best.empty()) << "trial " << trial;
      if (truth.best.empty()) continue;
      ASSERT_NEAR(found, truth.overall(), 1e-9 * truth.overall()) << "trial " << trial;
      ASSERT_NEAR(closed_form(problem.costs, answer.candidates[0].stages), found, 1e-9 * found);

      // With the optimum of each number of stages, and nothing above a cutoff.
      search.each_stage_count = true;
      search.cutoff_ns = 1.1 * truth.overall();
      std::map<int, double> each;
      for (const Candidate& candidate : problem.solve(search).candidates) {
        each.emplace(static_cast<int>(candidate.stages.size()), candidate.closed_form_ns);
      }
      for (const auto& [stages, ns] : truth.best) {
        if (ns > search.cutoff_ns) continue;
        ASSERT_TRUE(each.contains(stages)) << "trial " << trial << ", stages " << stages;
        ASSERT_NEAR(each[stages], ns, 1e-9 * ns) << "trial " << trial << ", stages " << stages;
      }
      ++feasible;
      several_stages += answer.candidates[0].stages.size() > 1;
      for (const StageChoice& stage : answer.candidates[0].stages) recomputed += stage.recompute;
    }
  }
  // The problems are not all of one kind.
  EXPECT_GT(feasible, 10000);
  EXPECT_GT(several_stages, 2000);
  EXPECT_GT(recomputed, 2000);
}

TEST(StageSolver, ObeysForcedReplicas) {
  std::mt19937 random(5);
  int feasible = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Problem problem = random_problem(random);
    StageSearch search{.schedule = plan::Schedule::one_f_one_b};
    search.replicas = trial % 2 == 0 ? std::vector{1, 2} : std::vector{2, 1, 1};
    const BruteForce truth(problem, search);
    const StageAnswer answer = problem.solve(search);
    ASSERT_EQ(answer.candidates.empty(), truth.best.empty()) << "trial " << trial;
    if (truth.best.empty()) continue;
    ++feasible;
    ASSERT_NEAR(answer.candidates[0].closed_form_ns, truth.overall(), 1e-9 * truth.overall());
  }
  EXPECT_GT(feasible, 50);
}

// Pins were looked at only when the solver's answers were known, so that of many blocks no answer
// was left.
TEST(StageSolver, ObeysPins) {
  std::mt19937 random(7);
  int feasible = 0, inner = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    const Problem problem = random_problem(random);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    StageSearch search{.schedule =
                           trial % 2 == 0 ? plan::Schedule::gpipe : plan::Schedule::one_f_one_b};
    if (trial % 5 == 0) search.stages = draw(1, 4);
    for (int block = 0; block < problem.costs.blocks(); ++block) {
      search.pins.push_back(draw(0, 3) == 0 ? draw(-1, std::min(block, 3)) : -2);
    }
    const BruteForce truth(problem, search);
    const StageAnswer answer = problem.solve(search);
    ASSERT_EQ(answer.candidates.empty(), truth.best.empty()) << "trial " << trial;
    if (truth.best.empty()) continue;
    ++feasible;
    inner += answer.candidates[0].stages.size() > 2;
    ASSERT_NEAR(answer.candidates[0].closed_form_ns, truth.overall(), 1e-9 * truth.overall())
        << "trial " << trial;
  }
  EXPECT_GT(feasible, 500);
  EXPECT_GT(inner, 50);
}

TEST(StageSolver, GivesTheSlowBlockMoreReplicas) {
  // Rows: 4 micro-batches of 6 rows. n0 takes 3*100 ns a row, n1 three times as much; parameters
  // of 100 bytes (400 with gradient and optimizer) fit a device of 700 bytes only one at a time.
  Request request;
  request.global_batch = 24;
  const Problem problem(chain({{.time_ns = 100, .bytes_per_row = 1, .param_bytes = 100},
                               {.time_ns = 300, .bytes_per_row = 1, .param_bytes = 100}}),
                        cluster(1, 4, 700), request, 4);
  // 1+3: 6 rows * 300 = 1800 and 2 rows * 900 = 1800. 2+2 has 900 and 2700, 3+1 worse.
  const StageAnswer answer = problem.solve({});
  ASSERT_EQ(answer.candidates.size(), 1u);
  EXPECT_EQ(answer.candidates[0].stages,
            (std::vector<StageChoice>{{0, 1, 1, 0, false}, {1, 2, 3, 1, false}}));
  // Sum: computes 1800 + 1800; each direction half of 10 + 6*1 and half of 10 + 2*1, so 14, twice.
  // Period 1800, three more times. Ring of n1 over 3 ranks: 2*2/3*100 + 4*10 = 173.33, hidden
  // behind the backward of stage 0.
  EXPECT_DOUBLE_EQ(answer.candidates[0].closed_form_ns, 3600 + 28 + 3 * 1800);
}

TEST(StageSolver, CutsByTheLongerOfTwoClocks) {
  // Four nodes of 100 forward and 200 backward a row. By the device's clock they are cut in the
  // middle, 600 and 600 a micro-batch. But the host takes 650 to issue the forward of the last one:
  // in the middle 200 + 400 and max(200, 650) + 400 = 1050, after three 900 and 650 + 200 = 850.
  Request request;
  request.global_batch = 8;
  const auto first_stage = [&](double issued_ns) {
    cost::GraphProfile profile =
        chain({{.time_ns = 100}, {.time_ns = 100}, {.time_ns = 100}, {.time_ns = 100}});
    if (issued_ns > 0) {
      const size_t points = profile.rows.size();
      profile.nodes[3].forward_host_ns.assign(points, issued_ns);
      for (size_t node = 0; node < 3; ++node) {
        profile.nodes[node].forward_host_ns.assign(points, 0.0);
      }
    }
    const Problem problem(profile, cluster(1, 2), request, 8);
    StageSearch search;
    search.stages = 2;
    return problem.solve(search).candidates.at(0).stages[0].last;
  };
  EXPECT_EQ(first_stage(0), 2);
  EXPECT_EQ(first_stage(650), 3);
}

TEST(StageSolver, RecomputesOnlyWhereMemoryDemandsIt) {
  // Saved: 10 bytes a row in n0, 0 in n1. One row per micro-batch, 4 in flight under fill-drain: 40
  // bytes on stage 0, or 4 * 8 of graph input + 10 = 42 with recompute; a device of 60 holds it
  // plain (buffers 2 * 8). With 3 saved bytes more per row, 52 + 16 is too much, 32 + 13 + 16 is
  // not either; so a device of 61 is.
  Request request;
  request.global_batch = 4;
  request.force.stages = 2;
  const auto first_stage = [&](double saved, double memory) {
    const Problem problem(chain({{.bytes_per_row = 8, .saved_per_row = saved}, {}}),
                          cluster(1, 2, memory), request, 4);
    StageSearch search{.schedule = plan::Schedule::gpipe};
    search.stages = 2;
    return problem.solve(search);
  };
  EXPECT_FALSE(first_stage(10, 60).candidates.at(0).stages[0].recompute);
  EXPECT_TRUE(first_stage(13, 61).candidates.at(0).stages[0].recompute);
  EXPECT_TRUE(first_stage(13, 60).candidates.empty());
}

TEST(StageSolver, KnowsThat1F1BHoldsFewerMicroBatches) {
  // Two stages on two ranks, 4 micro-batches of 1 row, saved 100 bytes a row in each. 1F1B holds 2
  // and 1 of them, fill-drain 4: 250 bytes suffice for the one, not for the other.
  Request request;
  request.global_batch = 4;
  request.recompute = Recompute::never;
  const Problem problem(chain({{.saved_per_row = 100}, {.saved_per_row = 100}}), cluster(1, 2, 250),
                        request, 4);
  StageSearch search{.schedule = plan::Schedule::one_f_one_b};
  search.stages = 2;
  EXPECT_EQ(problem.solve(search).candidates.size(), 1u);
  search.schedule = plan::Schedule::gpipe;
  EXPECT_TRUE(problem.solve(search).candidates.empty());
}

TEST(StageCosts, MemoryIsThatOfEvaluate) {
  std::mt19937 random(11);
  int checked = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const Problem problem = random_problem(random);
    StageSearch search{.schedule =
                           trial % 2 == 0 ? plan::Schedule::gpipe : plan::Schedule::one_f_one_b};
    search.each_stage_count = true;
    for (const Candidate& candidate : problem.solve(search).candidates) {
      plan::Plan plan;
      plan.schedule = search.schedule;
      plan.micro_batches = problem.costs.micro_batches();
      for (const StageChoice& choice : candidate.stages) {
        plan::Stage& stage = plan.stages.emplace_back();
        for (int k = choice.first; k < choice.last; ++k) {
          stage.nodes.push_back(problem.profile.nodes[static_cast<size_t>(k)].name);
        }
        for (int k = 0; k < choice.replicas; ++k) stage.ranks.push_back(choice.first_rank + k);
        stage.recompute = choice.recompute;
      }
      const Evaluation truth = evaluate(problem.profile, problem.machine, problem.request, plan);
      const auto count = static_cast<int>(plan.stages.size());
      ASSERT_EQ(truth.stages.size(), plan.stages.size());
      for (int k = 0; k < count; ++k) {
        const StageChoice& choice = candidate.stages[static_cast<size_t>(k)];
        const StageMemory memory =
            problem.costs.memory(choice.first, choice.last, choice.replicas, choice.recompute,
                                 in_flight(search.schedule, plan.micro_batches, count, k));
        const StageEvaluation& stage = truth.stages[static_cast<size_t>(k)];
        EXPECT_DOUBLE_EQ(memory.param_bytes, stage.param_bytes);
        EXPECT_DOUBLE_EQ(memory.gradient_bytes, stage.gradient_bytes);
        EXPECT_DOUBLE_EQ(memory.optimizer_bytes, stage.optimizer_bytes);
        EXPECT_DOUBLE_EQ(memory.activation_bytes, stage.activation_bytes);
        EXPECT_DOUBLE_EQ(memory.buffer_bytes, stage.buffer_bytes);
        EXPECT_DOUBLE_EQ(memory.workspace_bytes, stage.workspace_bytes);
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

}  // namespace
}  // namespace rannc::partition
