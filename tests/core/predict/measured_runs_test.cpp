#include "rannc/predict/measured_runs.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace rannc::predict {
namespace {

using plan::Action;
using plan::ActionKind;
using Pairs = std::vector<std::pair<double, double>>;

/// One stage on two ranks, three micro-batches; the last one has no rows on rank 1.
plan::Program two_replicas() {
  plan::Program program;
  program.stage_ranks = {{0, 1}};
  program.shares = {{{{0, 2}, {0, 2}, {0, 1}}, {{0, 2}, {0, 2}, {1, 1}}}};
  const std::vector<Action> actions = {
      {.kind = ActionKind::forward, .micro_batch = 0},
      {.kind = ActionKind::forward, .micro_batch = 1},
      {.kind = ActionKind::forward, .micro_batch = 2},
      {.kind = ActionKind::return_outputs, .stage = plan::kUser},
      {.kind = ActionKind::reduce_gradients, .stage = plan::kUser, .index = 0}};
  program.actions = {actions, actions};
  return program;
}

/// `times[rank]`: (passed, of the thread) of each action that takes time.
std::vector<RecordedRun> run(const std::vector<Pairs>& times, const std::string& hosts = "ab") {
  std::vector<RecordedRun> ranks;
  for (const Pairs& spent : times) {
    const size_t rank = ranks.size();
    RecordedRun& run = ranks.emplace_back();
    run.host = hosts.substr(rank, 1);
    run.seconds = 1;
    run.around_ns = 5 + static_cast<double>(rank);
    run.compute_ns = 20 + static_cast<double>(rank);
    run.optimizer_ns = 7;
    run.optimizer_factor = 2;
    for (size_t i = 0; i < spent.size(); ++i) {
      run.actions.push_back({.action = std::vector<size_t>{0, 1, 2, 4}[i],
                             .passed_ns = spent[i].first,
                             .cpu_ns = spent[i].second});
    }
  }
  return ranks;
}

/// The first run, which warms up, takes longer than anything.
MeasuredRuns of_later(std::vector<std::vector<RecordedRun>> runs) {
  std::vector<RecordedRun> first = runs.front();
  for (RecordedRun& rank : first) {
    for (RecordedAction& action : rank.actions) action.cpu_ns = action.passed_ns = 1e6;
  }
  runs.insert(runs.begin(), first);
  return summarize(two_replicas(), runs);
}

std::vector<double> work_of(const MeasuredRuns& runs, size_t rank) {
  std::vector<double> result;
  for (const MeasuredAction& action : runs.actions[rank]) result.push_back(action.work_ns);
  return result;
}

std::vector<double> waits_of(const MeasuredRuns& runs, size_t rank) {
  std::vector<double> result;
  for (const MeasuredAction& action : runs.actions[rank]) result.push_back(action.wait_ns);
  return result;
}

using Numbers = std::vector<double>;

TEST(MeasuredRuns, EqualActionsCountWithTheirMedianAndCollectivesWithTheirShortestWait) {
  // Rank 1 comes late to the reduction, so rank 0 waits for 90: the reduction itself takes 10.
  const auto late = run({{{9, 8}, {40, 30}, {4, 4}, {93, 3}}, {{9, 9}, {9, 9}, {0, 0}, {14, 4}}});
  const MeasuredRuns found = of_later({late});
  // The first forward is alone; the others have another number of rows.
  EXPECT_EQ(work_of(found, 0), (Numbers{8, 30, 4, 0, 3}));
  EXPECT_EQ(waits_of(found, 0), (Numbers{0, 0, 0, 0, 10}));
  EXPECT_EQ(waits_of(found, 1), (Numbers{0, 0, 0, 0, 10}));
  EXPECT_EQ(found.around_ns, (Numbers{5, 6}));
  EXPECT_EQ(found.compute_ns, (Numbers{20, 21}));
  EXPECT_EQ(found.optimizer_ns, (Numbers{7, 7}));
  EXPECT_EQ(found.optimizer_factor, (Numbers{2, 2}));

  const auto usual = run({{{9, 8}, {9, 9}, {4, 4}, {93, 3}}, {{9, 9}, {9, 9}, {0, 0}, {14, 4}}});
  EXPECT_EQ(work_of(of_later({late, usual, usual}), 0)[1], 9);
}

TEST(MeasuredRuns, ReplicasOfOneHostAreExpectedToTakeEquallyLong) {
  const MeasuredRuns found =
      of_later({run({{{9, 8}, {9, 9}, {4, 4}, {13, 3}}, {{9, 6}, {9, 5}, {0, 0}, {14, 4}}}, "aa")});
  // The third has rows on rank 0 only. What each adds to a reduction is its own.
  EXPECT_EQ(work_of(found, 0), (Numbers{7, 7, 4, 0, 3}));
  EXPECT_EQ(work_of(found, 1), (Numbers{7, 7, 0, 0, 4}));
  EXPECT_EQ(found.around_ns, (Numbers{5.5, 5.5}));
}

TEST(MeasuredRuns, ComputingCountsWithoutTheTimeForNewMemory) {
  const Pairs times = {{8, 8}, {8, 6}, {4, 4}, {9, 3}};
  auto ranks = run({times, times});
  for (RecordedRun& rank : ranks) rank.paging_seconds = 5e-9;
  const MeasuredRuns found = of_later({ranks});
  // Rank 0 computes for 20 ns, a quarter of them for new memory; the reduction stays as it is.
  EXPECT_EQ(work_of(found, 0), (Numbers{6, 4.5, 3, 0, 3}));
  EXPECT_EQ(found.compute_ns, (Numbers{15, 16}));
}

TEST(MeasuredRuns, OfSeveralACollectiveCountsWithTheMedianOfItsWaits) {
  std::vector<std::vector<RecordedRun>> runs;
  for (const double wait : {50, 10, 30}) {
    runs.push_back(
        run({{{9, 8}, {9, 9}, {4, 4}, {93, 3}}, {{9, 9}, {9, 9}, {0, 0}, {4 + wait, 4}}}));
  }
  const MeasuredAction found = of_later(runs).actions[0][4];
  EXPECT_EQ(found.work_ns, 3);
  EXPECT_EQ(found.wait_ns, 30);
}

TEST(MeasuredRuns, SeveralThreadsCountWithTheTimeThatPasses) {
  const Pairs times(4, {9, 8});
  auto ranks = run({times, times});
  for (RecordedRun& rank : ranks) rank.one_thread = false;
  const MeasuredRuns found = of_later({ranks});
  EXPECT_EQ(found.actions[0][0].work_ns, 9);
  EXPECT_EQ(found.actions[0][4].work_ns, 8);
  EXPECT_EQ(found.actions[0][4].wait_ns, 1);
}

/// A message from rank 0 to rank `to`, whose receive is action `receive`; it leaves at 100 us.
MeasuredRuns with_message(plan::Rank to, const std::string& hosts, const RecordedAction& receive) {
  plan::Program program;
  program.stage_ranks = {{0}, {1}};
  program.shares = {{{{0, 1}}}, {{{0, 1}}}};
  plan::Transfer& transfer = program.transfers.emplace_back();
  transfer.value = {3};
  transfer.to_stage = 1;
  transfer.to = to;
  program.actions = {{{.kind = ActionKind::send, .index = 0}}, {}};
  program.actions[static_cast<size_t>(to)].push_back({.kind = ActionKind::receive, .index = 0});
  std::vector<RecordedRun> ranks(2);
  for (size_t rank = 0; rank < 2; ++rank) ranks[rank].host = hosts.substr(rank, 1);
  ranks[0].actions = {{.action = 0, .passed_ns = 5000, .cpu_ns = 5000, .end_ns = 100'000}};
  ranks[static_cast<size_t>(to)].actions.push_back(receive);
  return summarize(program, {ranks});
}

TEST(MeasuredRuns, AMessageThatIsWaitedForSaysHowLongItIsOnItsWay) {
  const RecordedAction waits = {0, 90'000, 10'000, 170'000};
  // Sent at 100 us, there at 160 us, after which the receiver works for 10 us.
  MeasuredRuns found = with_message(1, "aa", waits);
  EXPECT_EQ(found.actions[0][0].work_ns, 5000);
  EXPECT_EQ(found.actions[0][0].wait_ns, 60'000);
  EXPECT_EQ(found.actions[1][0].work_ns, 10'000);
  EXPECT_EQ(found.actions[1][0].wait_ns, 0);
  const auto wait_of = [](const MeasuredRuns& runs) { return runs.actions[0][0].wait_ns; };
  // It was there before: the link must say.
  EXPECT_EQ(wait_of(with_message(1, "aa", {0, 11'000, 10'000, 170'000})), -1);
  // It left before its receiver came, who then waited for something: it was not long on its way.
  EXPECT_EQ(wait_of(with_message(1, "aa", {0, 50'000, 10'000, 170'000})), -1);
  // Clocks of two hosts.
  EXPECT_EQ(wait_of(with_message(1, "ab", waits)), -1);
  // A rank's message to itself is never on its way, however late it gets to it.
  found = with_message(0, "aa", {1, 90'000, 10'000, 170'000});
  EXPECT_EQ(wait_of(found), -1);
  EXPECT_EQ(found.actions[0][1].work_ns, 10'000);
  EXPECT_EQ(found.actions[0][1].wait_ns, 0);
}

/// Milliseconds (median, shortest, all) of runs of (seconds, of which for new memory).
std::vector<int> times_of(const Pairs& runs) {
  plan::Program program;
  program.actions.resize(1);
  std::vector<std::vector<RecordedRun>> recorded;
  for (const auto& [seconds, paging] : runs) {
    recorded.push_back({{.seconds = seconds, .paging_seconds = paging}});
  }
  const MeasuredRuns found = summarize(program, recorded);
  const auto ms = [](double ns) { return static_cast<int>(ns / 1e6 + 0.5); };
  return {ms(found.run_ns), ms(found.shortest_ns), ms(found.all_ns)};
}

TEST(MeasuredRuns, LongOnesCountWithoutTheTimeForNewMemory) {
  // The second run of a plan that holds more: 1.3 s, of which it waits 0.4 s for pages.
  EXPECT_EQ(times_of({{1.5, 0.5}, {1.3, 0.4}}), (std::vector<int>{900, 900, 2800}));
  // Of short ones that time is not known well, and there are others.
  EXPECT_EQ(times_of({{0.4, 0.2}, {0.3, 0.2}, {0.2, 0}}), (std::vector<int>{250, 200, 900}));
  EXPECT_EQ(times_of({{3, 1}}), (std::vector<int>{2000, 2000, 3000}));
}

}  // namespace
}  // namespace rannc::predict
