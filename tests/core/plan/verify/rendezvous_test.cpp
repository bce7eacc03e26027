#include "plan/verify/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "plan/random_programs.h"
#include "plan/verify/blocking_run.h"

namespace rannc::plan {
namespace {

constexpr std::array kModes = {
    std::pair(Extent::whole, Blocking::everything),
    std::pair(Extent::whole, Blocking::stream),
    std::pair(Extent::forward_only, Blocking::everything),
    std::pair(Extent::forward_only, Blocking::stream),
    std::pair(Extent::without_sums, Blocking::everything),
    std::pair(Extent::without_sums, Blocking::stream),
};

bool is_sound(const Program& program, const ir::Graph& graph) {
  try {
    verify(program, graph);
  } catch (const PlanError&) {
    return false;
  }
  return true;
}

TEST(Rendezvous, EndsForTenThousandRandomPrograms) {
  constexpr unsigned kSeed = 28;
  constexpr int kPrograms = 10'000;
  RandomPrograms random(kSeed);
  size_t communications = 0;
  std::array<int, 5> of_kind{};
  for (int round = 0; round < kPrograms; ++round) {
    const auto made = random.next();
    ASSERT_NO_THROW(verify(made.program, made.graph))
        << "seed " << kSeed << ", program " << round << "\n"
        << show_order(made.program);
    communications += made.program.order.size();
    for (const Communication& one : made.program.order) ++of_kind[static_cast<size_t>(one.kind)];
    if (round % 50 != 0) continue;
    for (const auto& [extent, blocking] : kModes) {
      ASSERT_TRUE(BlockingRun(made.program, made.graph, extent, blocking).ends())
          << "seed " << kSeed << ", program " << round << "\n"
          << show_order(made.program);
    }
  }
  std::printf("seed %u: %d programs, %zu communications\n", kSeed, kPrograms, communications);
  EXPECT_TRUE(std::ranges::all_of(of_kind, [](int count) { return count > 1000; }));
}

/// Each rank issues when it comes to the send or receive.
Program in_order_of_actions(Program program) {
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    const std::vector<Action>& actions = program.actions[static_cast<size_t>(rank)];
    std::vector<Issue>& issues = program.issues[static_cast<size_t>(rank)];
    issues.clear();
    for (int at = 0; at < static_cast<int>(actions.size()); ++at) {
      const Action& action = actions[static_cast<size_t>(at)];
      if (action.kind != ActionKind::send && action.kind != ActionKind::receive) continue;
      const auto found = std::ranges::find(
          program.order, Communication{.index = action.index, .direction = action.direction});
      const auto place = static_cast<int>(found - program.order.begin());
      if (std::ranges::count(issues, place, &Issue::place) == 0) issues.push_back({place, at});
    }
  }
  return program;
}

TEST(Rendezvous, SaysWhereTheOrderOfActionsBlocksTwoStagesOnTwoRanks) {
  // Rank 1 first sends its rows of both micro-batches, so it does not take what stage 0 makes of
  // the first; until it does, rank 0 does not take the second.
  const ir::Graph graph = chain(2);
  const Program program = lower(chain_plan({1, 1}, 2), graph, {2, 2}, true);
  verify(program, graph);
  try {
    verify(in_order_of_actions(program), graph);
    FAIL() << "it was not found";
  } catch (const PlanError& error) {
    EXPECT_STREQ(error.what(),
                 "the program is wrong: it does not end where a communication blocks everything: \n"
                 "  rank 0 waits in place 4 of the order (rows of value 2 of micro-batch 0, from "
                 "stage 0 on rank 0 to stage 1 on rank 1)\n"
                 "  rank 1 waits in place 3 of the order (rows of value 0 of micro-batch 1, from "
                 "the user on rank 1 to stage 0 on rank 0)");
  }
  for (const Blocking blocking : {Blocking::everything, Blocking::stream}) {
    const Program wrong = in_order_of_actions(program);
    EXPECT_NE(Rendezvous(wrong, graph).why_blocked(Extent::forward_only, blocking), "");
    EXPECT_EQ(Rendezvous(program, graph).why_blocked(Extent::forward_only, blocking), "");
  }
}

/// How often verify() and the execution said that a damaged Program ends, or does not.
struct Answers {
  int ends = 0;
  int blocks = 0;
  void count(bool end) { ++(end ? ends : blocks); }
};

/// Both must say the same of the whole, and of each way to run it.
void compare(const Program& program, const ir::Graph& graph, Answers& overall, Answers& by_mode) {
  const Rendezvous rendezvous(program, graph);
  bool all = true;
  for (const auto& [extent, blocking] : kModes) {
    const bool ends = BlockingRun(program, graph, extent, blocking).ends();
    const std::string why = rendezvous.why_blocked(extent, blocking);
    ASSERT_EQ(why.empty(), ends) << why << "\n" << show_order(program);
    // With groups in place of ranks it is the same question.
    if (overall.ends % 4 == 0) {
      ASSERT_EQ(BlockingRun(program, graph, extent, blocking, /*places=*/2).ends(), ends)
          << show_order(program);
    }
    by_mode.count(ends);
    all &= ends;
  }
  ASSERT_EQ(is_sound(program, graph), all) << show_order(program);
  overall.count(all);
}

TEST(Rendezvous, SaysWhatAnExecutionSaysWhenTwoIssuesOfARankAreSwapped) {
  constexpr unsigned kSeed = 29;
  RandomPrograms random(kSeed);
  Answers overall, by_mode;
  while (overall.ends + overall.blocks < 1000) {
    auto [plan, graph, program] = random.next();
    auto& issues = program.issues[static_cast<size_t>(random.pick(0, program.ranks() - 1))];
    if (issues.size() < 2) continue;
    const int count = static_cast<int>(issues.size());
    const int first = random.pick(0, count - 2);
    // Neighbours often change nothing.
    const int second = random.chance(4) ? random.pick(first + 1, count - 1) : first + 1;
    std::swap(issues[static_cast<size_t>(first)].place, issues[static_cast<size_t>(second)].place);
    ASSERT_NO_FATAL_FAILURE(compare(program, graph, overall, by_mode)) << "seed " << kSeed;
  }
  std::printf("seed %u: %d end, %d do not; by mode %d and %d\n", kSeed, overall.ends,
              overall.blocks, by_mode.ends, by_mode.blocks);
  EXPECT_GE(std::min(overall.ends, overall.blocks), 200);
  EXPECT_GE(std::min(by_mode.ends, by_mode.blocks), 200);
}

/// Moves one issue of a rank to the other side of return_outputs; false where there is none.
bool move_across(Program& program, RandomPrograms& random) {
  const auto rank = static_cast<size_t>(random.pick(0, program.ranks() - 1));
  const std::vector<Action>& actions = program.actions[rank];
  const auto found = std::ranges::find(actions, ActionKind::return_outputs, &Action::kind);
  std::vector<Issue>& issues = program.issues[rank];
  if (found == actions.end() || issues.empty()) return false;
  const auto returns = static_cast<int>(found - actions.begin());

  const int from = random.pick(0, static_cast<int>(issues.size()) - 1);
  const bool was_before = issues[static_cast<size_t>(from)].action <= returns;
  Issue moved = issues[static_cast<size_t>(from)];
  issues.erase(issues.begin() + from);
  const auto border = static_cast<int>(
      std::ranges::count_if(issues, [&](const Issue& issue) { return issue.action <= returns; }));
  const int least = was_before ? border : 0;
  const int most = was_before ? static_cast<int>(issues.size()) : border;
  // Half of them as near as possible.
  const int to = !random.chance(2) ? random.pick(least, most) : was_before ? least : most;
  moved.action = was_before ? returns + 1 : 0;
  moved.inside = false;
  if (to > least) {
    moved.action = issues[static_cast<size_t>(to) - 1].action;
    moved.inside = issues[static_cast<size_t>(to) - 1].inside;
  }
  issues.insert(issues.begin() + to, moved);
  return true;
}

TEST(Rendezvous, SaysWhatAnExecutionSaysWhenAnIssueIsMovedAcrossTheReturn) {
  constexpr unsigned kSeed = 30;
  RandomPrograms random(kSeed);
  Answers overall, by_mode;
  while (overall.ends + overall.blocks < 1000) {
    auto [plan, graph, program] = random.next();
    if (!move_across(program, random)) continue;
    ASSERT_NO_FATAL_FAILURE(compare(program, graph, overall, by_mode)) << "seed " << kSeed;
  }
  std::printf("seed %u: %d end, %d do not; by mode %d and %d\n", kSeed, overall.ends,
              overall.blocks, by_mode.ends, by_mode.blocks);
  // What one rank issues on the wrong side, its peers wait for when no backward comes.
  EXPECT_EQ(overall.ends, 0);
  EXPECT_GE(std::min(by_mode.ends, by_mode.blocks), 200);
}

TEST(Rendezvous, EndsForGroupsWhosePlacesGoThroughTheProgramAlike) {
  constexpr unsigned kSeed = 31;
  RandomPrograms random(kSeed);
  Answers otherwise;
  for (int round = 0; round < 150; ++round) {
    const auto made = random.next();
    for (const auto& [extent, blocking] : kModes) {
      const auto run = [&, extent = extent, blocking = blocking](int places, bool alike) {
        return BlockingRun(made.program, made.graph, extent, blocking, places, alike).ends();
      };
      ASSERT_TRUE(run(2, true) && run(3, true)) << show_order(made.program);
      otherwise.count(run(2, false));
    }
  }
  std::printf("seed %u: where places issue in orders of their own %d end, %d do not\n", kSeed,
              otherwise.ends, otherwise.blocks);
  EXPECT_GE(otherwise.blocks, 10);  // so it has to be one order
}

}  // namespace
}  // namespace rannc::plan
