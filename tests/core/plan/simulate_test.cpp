#include "rannc/plan/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "plan/graphs.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// The example of docs/planner-files.md: emb and mlp on ranks 0 and 1, head on rank 2, rank 3 idle;
/// emb.weight is tied over both stages.
struct Example {
  ir::Graph graph;
  Plan plan;
};
Example example() {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto embedding = maker.parameter("emb.weight");
  const auto weight = maker.parameter("mlp.weight");
  const auto emb = maker.node("emb", {x, embedding});
  const auto mlp = maker.node("mlp", {emb, weight});
  maker.graph.outputs = {maker.reduced("head", {mlp, embedding}, ir::RowKind::mean)};
  Plan plan;
  plan.schedule = Schedule::one_f_one_b;
  plan.micro_batches = 2;
  plan.stages = {stage({"emb", "mlp"}, {0, 1}), stage({"head"}, {2})};
  return {maker.graph, plan};
}

TEST(Simulate, EndsWhenTheWorkedExampleOfTheDocumentationEnds) {
  const auto [graph, plan] = example();
  const Program program = lower(plan, graph, {2, 2, 2, 2}, true);
  ASSERT_EQ(program.reductions.size(), 2u);
  const double tied_ns = 2.0 * 2 / 3 * 8000 / 0.1 + 4 * 100;
  const Simulation simulation = simulate(program, {.forward_ns = {600, 400},
                                                   .backward_ns = {1200, 800},
                                                   .transfer_ns = {{0, 40100}, {0, 0}},
                                                   .transfer_back_ns = {},
                                                   .reduce_ns = {4020, tied_ns}});
  EXPECT_NEAR(simulation.end_ns, 234386.67, 0.01);
  // min(m, S - s): two in flight in stage 0, one in stage 1.
  EXPECT_EQ(simulation.peak_in_flight, (std::vector<int>{2, 1}));
  const Span last_backward = simulation.spans[3];
  EXPECT_EQ(last_backward.rank, 0);
  EXPECT_EQ(last_backward.end_ns, 123300);
}

TEST(Simulate, KeepsTransfersOfOneWayInLine) {
  // Two forwards end at 1 and 2; the first message takes until 11, so the second ends at 21 and the
  // second forward of stage 1 at 22. Gradients are sent at 23 and 24 and arrive at 28 and 33.
  const Program program = lower(chain_plan({1, 1}, 2), chain(2), {2, 0}, true);
  const Simulation simulation = simulate(program, {.forward_ns = {1, 1},
                                                   .backward_ns = {1, 1},
                                                   .transfer_ns = {{0, 10}, {0, 0}},
                                                   .transfer_back_ns = {{0, 5}, {0, 0}},
                                                   .reduce_ns = {}});
  EXPECT_EQ(simulation.end_ns, 34);
}

TEST(Simulate, NamesWhoWaitsForWhatWhenAProgramCannotEnd) {
  Program program = lower(chain_plan({1, 1}, 1), chain(2), {1, 1}, true);
  // Rank 0 never sends the boundary value, so rank 1 waits for it, and rank 0 for the outputs.
  std::erase_if(program.actions[0], [&](const Action& action) {
    return action.kind == ActionKind::send && action.stage == 0;
  });
  try {
    (void)timeline(program);
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_STREQ(error.what(),
                 "the program cannot end:\n"
                 "  rank 0 waits for the rows of value 4 of micro-batch 0 from stage 1 on rank 1\n"
                 "  rank 1 waits for the rows of value 2 of micro-batch 0 from stage 0 on rank 0");
  }
}

TEST(Simulate, FindsReductionsInDifferentOrders) {
  const auto [graph, plan] = example();
  Program program = lower(plan, graph, {2, 2, 2, 2}, true);
  auto& actions = program.actions[1];
  const auto first = std::ranges::find(actions, ActionKind::reduce_gradients, &Action::kind);
  std::swap(first[0].index, first[1].index);
  try {
    (void)timeline(program);
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 waits in reduction 1: only 2"),
              std::string::npos)
        << error.what();
  }
}

TEST(Simulate, EndsForBatchesSmallerThanPlannedAndRanksWithoutRows) {
  const auto check = [](const Plan& plan, const ir::Graph& graph, int ranks,
                        int64_t micro_batches) {
    for (int64_t rows = 1; rows <= micro_batches; ++rows) {
      // All rows on the last rank, or dealt to the first ones.
      std::vector<int64_t> last(static_cast<size_t>(ranks), 0);
      last.back() = rows;
      for (const std::vector<int64_t>& local_rows : {last, deal(rows, ranks, 0)}) {
        const Program program = lower(plan, graph, local_rows, true);
        ASSERT_NO_THROW(verify(program, graph)) << rows << " rows, " << name(plan.schedule);
        EXPECT_EQ(program.split.micro_batches, rows);
        EXPECT_NO_THROW((void)timeline(program));
      }
    }
  };
  for (int stages = 2; stages <= 6; ++stages) {
    const ir::Graph graph = chain(stages, /*loss=*/true);
    const std::vector<int> replicas(static_cast<size_t>(stages), 2);
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b}) {
      check(chain_plan(replicas, 5, schedule), graph, 2 * stages, 5);
    }
    if (stages % 2 == 0 && stages >= 4) {
      check(interleaved_plan(stages / 2, 2, 3 * stages / 2), graph, stages / 2, 3 * stages / 2);
    }
  }
}

struct Step {
  bool forward;
  int stage;
  int micro_batch;
};

/// The order of a group as docs/planner-files.md words it.
std::vector<Step> order_of(const Plan& plan, int group) {
  const int stages = static_cast<int>(plan.stages.size()), m = static_cast<int>(plan.micro_batches);
  const int v = plan.interleave, p = stages / v;
  const auto nth = [&](bool forward, int n) {
    if (v == 1) return Step{forward, group, n};
    const int chunk = (n / p) % v;
    return Step{forward, (forward ? chunk : v - 1 - chunk) * p + group, (n / (p * v)) * p + n % p};
  };
  int warm_up = v * m;
  if (plan.schedule == Schedule::one_f_one_b) warm_up = std::min(m, stages - 1 - group);
  if (v > 1) warm_up = std::min(v * m, 2 * (p - 1 - group) + (v - 1) * p);
  std::vector<Step> order;
  int forwards = 0, backwards = 0;
  while (forwards < warm_up) order.push_back(nth(true, forwards++));
  while (forwards < v * m) {
    order.push_back(nth(true, forwards++));
    order.push_back(nth(false, backwards++));
  }
  while (backwards < v * m) order.push_back(nth(false, backwards++));
  return order;
}

/// Forwards begun and backwards not yet ended, at most, of each stage: section 6 of the same page.
std::vector<int> declared_in_flight(const Plan& plan) {
  const int stages = static_cast<int>(plan.stages.size()), m = static_cast<int>(plan.micro_batches);
  std::vector<int> most(static_cast<size_t>(stages), m);
  for (int stage = 0; stage < stages && plan.schedule == Schedule::one_f_one_b; ++stage) {
    most[stage] = std::min(m, stages - stage);
  }
  if (plan.schedule != Schedule::interleaved) return most;
  std::vector<int> now(static_cast<size_t>(stages), 0);
  std::ranges::fill(most, 0);
  for (int group = 0; group < stages / plan.interleave; ++group) {
    for (const Step& step : order_of(plan, group)) {
      now[step.stage] += step.forward ? 1 : -1;
      most[step.stage] = std::max(most[step.stage], now[step.stage]);
    }
  }
  return most;
}

void check_size(const Plan& plan, const ir::Graph& graph, int ranks) {
  verify(plan, graph, ranks);
  const Program program =
      lower(plan, graph, std::vector<int64_t>(static_cast<size_t>(ranks), 16), true);
  verify(program, graph);
  const auto stages = plan.stages.size();
  Durations durations;
  durations.forward_ns.assign(stages, 1);
  durations.backward_ns.assign(stages, 1);
  durations.transfer_ns.assign(stages, std::vector<double>(stages, 0));
  const Simulation simulation = simulate(program, durations);
  EXPECT_EQ(simulation.peak_in_flight, declared_in_flight(plan)) << timeline(program);
  // Fill-drain and 1F1B take (m + S - 1) forwards and as many backwards of one unit. Interleaved
  // groups wait at most for one way through the stages besides their own work.
  const double m = static_cast<double>(plan.micro_batches), count = static_cast<double>(stages);
  if (plan.schedule == Schedule::interleaved) {
    EXPECT_LE(simulation.end_ns, 2 * (m * plan.interleave + count - 1)) << timeline(program);
  } else {
    EXPECT_EQ(simulation.end_ns, 2 * (m + count - 1)) << timeline(program);
  }
}

TEST(Simulate, EndsWithinTheDeclaredMemoryForEverySizeAndSchedule) {
  for (int groups = 1; groups <= 8; ++groups) {
    const std::vector<int> replicas(static_cast<size_t>(groups), 1);
    const ir::Graph plain = chain(groups, /*loss=*/true);
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b}) {
        check_size(chain_plan(replicas, micro_batches, schedule), plain, groups);
      }
      if (groups < 2 || micro_batches % groups != 0) continue;
      for (int chunks = 2; chunks <= 4; ++chunks) {
        check_size(interleaved_plan(groups, chunks, micro_batches),
                   chain(groups * chunks, /*loss=*/true), groups);
      }
    }
  }
}

/// Section 5 of docs/planner-files.md over groups, written for this test only.
struct Reference {
  Plan plan;
  std::set<std::pair<int, int>> edges;  // stages between which values flow
  Durations durations;
  std::map<std::vector<int>, double> reduce_ns;  // by stages

  double end_ns() const {
    const int stages = static_cast<int>(plan.stages.size());
    const int groups = stages / plan.interleave;
    std::map<std::tuple<bool, int, int>, double> ended;  // forward?, stage, micro-batch
    std::map<std::tuple<bool, int, int, int>, double> arrived;
    std::vector<size_t> next(static_cast<size_t>(groups), 0);
    std::vector<double> clock(static_cast<size_t>(groups), 0);
    std::vector<std::vector<Step>> orders;
    for (int group = 0; group < groups; ++group) {
      orders.push_back(order_of(plan, group));
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int group = 0; group < groups; ++group) {
        if (next[group] == orders[group].size()) continue;
        const auto [forward, stage, k] = orders[group][next[group]];
        double begin = clock[group];
        bool ready = true;
        for (int other = 0; other < stages; ++other) {
          const auto edge = forward ? std::pair(other, stage) : std::pair(stage, other);
          if (!edges.contains(edge)) continue;
          const auto found = arrived.find({forward, other, stage, k});
          ready = ready && found != arrived.end();
          if (found != arrived.end()) begin = std::max(begin, found->second);
        }
        if (!ready) continue;
        const double end = begin + (forward ? durations.forward_ns : durations.backward_ns)[stage];
        ended[{forward, stage, k}] = clock[group] = end;
        for (int other = 0; other < stages; ++other) {
          const auto edge = forward ? std::pair(stage, other) : std::pair(other, stage);
          if (!edges.contains(edge)) continue;
          double start = end;
          const auto before = arrived.find({forward, stage, other, k - 1});
          if (before != arrived.end()) start = std::max(start, before->second);
          const auto& times = forward ? durations.transfer_ns : durations.transfer_back_ns;
          arrived[{forward, stage, other, k}] = start + times[edge.first][edge.second];
        }
        ++next[group];
        moved = true;
      }
    }

    double latest = *std::ranges::max_element(clock);
    std::vector<double> free(static_cast<size_t>(stages));
    for (int stage = 0; stage < stages; ++stage) {
      free[stage] = ended.at({false, stage, static_cast<int>(plan.micro_batches) - 1});
    }
    std::vector<int> by_end(static_cast<size_t>(stages));
    for (int stage = 0; stage < stages; ++stage) by_end[stage] = stage;
    std::ranges::stable_sort(by_end, {}, [&](int stage) { return free[stage]; });
    std::vector<double> group_free(static_cast<size_t>(groups), 0);
    for (int stage : by_end) {
      const auto own = reduce_ns.find({stage});
      if (own == reduce_ns.end()) continue;
      double& group = group_free[stage % groups];
      group = free[stage] = std::max(group, free[stage]) + own->second;
      latest = std::max(latest, group);
    }
    for (const auto& [set, time] : reduce_ns) {
      if (set.size() < 2) continue;
      double begin = 0;
      for (int stage : set) begin = std::max(begin, free[stage]);
      for (int stage : set) free[stage] = begin + time;
      latest = std::max(latest, begin + time);
    }
    return latest;
  }
};

int pick(std::mt19937& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

/// A chain of one node per stage with skips and tied parameters between random stages.
ir::Graph random_graph(int stages, bool tied, std::mt19937& random,
                       std::set<std::pair<int, int>>& edges) {
  GraphMaker maker;
  std::vector<ir::ValueId> values, weights;
  const ir::ValueId x = maker.input("x");
  for (int stage = 0; stage < stages; ++stage) {
    const std::string number = std::to_string(stage);
    weights.push_back(maker.parameter("w" + number));
    std::vector<ir::ValueId> operands{stage == 0 ? x : values.back(), weights.back()};
    if (stage > 0) edges.insert({stage - 1, stage});
    for (int from = 0; from + 1 < stage; ++from) {
      if (pick(random, 0, 3) != 0) continue;
      operands.push_back(values[from]);
      edges.insert({from, stage});
    }
    if (tied && stage > 0 && pick(random, 0, 2) == 0) {
      operands.push_back(weights[pick(random, 0, stage - 1)]);
    }
    values.push_back(stage + 1 == stages ? maker.reduced("n" + number, operands, ir::RowKind::mean)
                                         : maker.node("n" + number, operands));
  }
  maker.graph.outputs = {values.back()};
  return maker.graph;
}

TEST(Simulate, EqualsTheArithmeticOfTheDocumentationWhenSharesAreEqual) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    Reference reference;
    const int kind = pick(random, 0, 2);
    if (kind == 2) {
      const int groups = pick(random, 2, 3);
      reference.plan = interleaved_plan(groups, pick(random, 2, 3), groups * pick(random, 1, 3));
      for (Stage& stage : reference.plan.stages) {
        const Rank first = stage.ranks[0];
        stage.ranks = {2 * first, 2 * first + 1};
      }
    } else {
      std::vector<int> replicas(static_cast<size_t>(pick(random, 1, 5)));
      for (int& count : replicas) count = pick(random, 1, 3);
      reference.plan = chain_plan(replicas, pick(random, 1, 5),
                                  kind == 0 ? Schedule::gpipe : Schedule::one_f_one_b);
    }
    const int stages = static_cast<int>(reference.plan.stages.size());
    const ir::Graph graph = random_graph(stages, /*tied=*/kind != 2, random, reference.edges);
    int world = 1;
    for (const Stage& stage : reference.plan.stages) {
      world = std::max(world, stage.ranks.back() + 1);
    }
    // 12 rows per rank and micro-batch, so that 1, 2 and 3 replicas get equal shares.
    const std::vector<int64_t> rows(static_cast<size_t>(world), 12 * reference.plan.micro_batches);
    verify(reference.plan, graph, world);
    const Program program = lower(reference.plan, graph, rows, true);
    verify(program, graph);

    Durations& durations = reference.durations;
    for (int stage = 0; stage < stages; ++stage) {
      durations.forward_ns.push_back(pick(random, 1, 50));
      durations.backward_ns.push_back(pick(random, 1, 50));
      durations.transfer_ns.emplace_back(static_cast<size_t>(stages));
      durations.transfer_back_ns.emplace_back(static_cast<size_t>(stages));
      for (int other = 0; other < stages; ++other) {
        const bool same_group =
            reference.plan.stages[stage].ranks == reference.plan.stages[other].ranks;
        durations.transfer_ns[stage][other] = same_group ? 0 : pick(random, 0, 40);
        durations.transfer_back_ns[stage][other] = same_group ? 0 : pick(random, 0, 40);
      }
    }
    for (const Reduction& reduction : program.reductions) {
      durations.reduce_ns.push_back(pick(random, 1, 60));
      reference.reduce_ns[reduction.stages] = durations.reduce_ns.back();
    }
    EXPECT_EQ(simulate(program, durations).end_ns, reference.end_ns()) << "round " << round << "\n"
                                                                       << to_json(reference.plan);
  }
}

}  // namespace
}  // namespace rannc::plan
