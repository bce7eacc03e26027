#include "rannc/plan/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "plan/graphs.h"
#include "rannc/plan/simulate.h"

namespace rannc::plan {
namespace {

using Json = nlohmann::json;

Program program_of(const Plan& plan, int world) {
  const ir::Graph graph = chain(static_cast<int>(plan.stages.size()), /*loss=*/true);
  return lower(plan, graph, std::vector<int64_t>(static_cast<size_t>(world), plan.micro_batches),
               /*training=*/true);
}

/// Every action of the rank one after the other, each of 10 ns, from `begin_ns` on.
std::vector<TimedAction> one_by_one(const Program& program, Rank rank, int64_t begin_ns) {
  std::vector<TimedAction> actions;
  const auto count = static_cast<int>(program.actions[static_cast<size_t>(rank)].size());
  for (int i = 0; i < count; ++i) {
    actions.push_back({i, begin_ns + 10 * i, begin_ns + 10 * (i + 1)});
  }
  actions.push_back({-1, begin_ns + 10 * count, begin_ns + 10 * count + 5});
  return actions;
}

Json events_of(const std::string& text) { return Json::parse("[" + text + "]"); }

/// What the Trace Event Format demands of an event.
void expect_sound(const Json& event) {
  static const std::set<std::string> kPhases{"X", "M", "C", "s", "f"};
  const std::string phase = event.at("ph");
  EXPECT_TRUE(kPhases.contains(phase)) << event;
  EXPECT_TRUE(event.at("pid").is_number_integer() && event.at("tid").is_number_integer());
  EXPECT_TRUE(event.at("name").is_string());
  if (phase != "M") {
    EXPECT_GE(event.at("ts").get<double>(), 0) << event;
  }
  if (phase == "X") {
    EXPECT_GE(event.at("dur").get<double>(), 0) << event;
  }
  if (phase == "s" || phase == "f") {
    EXPECT_TRUE(event.contains("id") && event.contains("cat")) << event;
  }
  if (phase == "f") {
    EXPECT_EQ(event.at("bp"), "e");
  }
  if (phase == "C" || phase == "M") {
    EXPECT_TRUE(event.at("args").is_object());
  }
}

TEST(Trace, ArrowsGoFromEachSendToItsReceiveAndLieInTheirBars) {
  const Program program = program_of(chain_plan({2, 1}, 2, Schedule::one_f_one_b), 3);
  std::map<std::string, std::vector<Json>> arrows;
  for (Rank rank = 0; rank < 3; ++rank) {
    const Json events =
        events_of(trace_events(program, rank, one_by_one(program, rank, 1000 * rank), /*step=*/0));
    for (const Json& event : events) {
      expect_sound(event);
      EXPECT_EQ(event["pid"], rank);
      if (event["ph"] != "s" && event["ph"] != "f") continue;
      arrows[event["id"]].push_back(event);
      EXPECT_TRUE(std::ranges::any_of(events, [&](const Json& bar) {
        if (bar["ph"] != "X" || bar["cat"] != (event["ph"] == "s" ? "send" : "receive")) {
          return false;
        }
        const double begin = bar["ts"], end = begin + bar["dur"].get<double>(), at = event["ts"];
        return begin - 1e-9 <= at && at <= end + 1e-9;
      })) << event;
    }
  }
  size_t messages = 0;  // between ranks, forward and back
  for (const Transfer& transfer : program.transfers) {
    if (transfer.from != transfer.to) messages += transfer.grad ? 2 : 1;
  }
  EXPECT_GE(messages, 8u);
  EXPECT_EQ(arrows.size(), messages);
  for (const auto& [id, ends] : arrows) {
    ASSERT_EQ(ends.size(), 2u) << id;
    EXPECT_NE(ends[0]["ph"], ends[1]["ph"]) << id;
    EXPECT_NE(ends[0]["pid"], ends[1]["pid"]) << id;
  }
}

TEST(Trace, BarsSayStepStageAndMicroBatchAndTimesAreMicroseconds) {
  const Program program = program_of(chain_plan({1, 1}, 1), 2);
  int receive = 0;
  while (in_words(program, program.actions[1][static_cast<size_t>(receive)]) !=
         "receive from rank 0: rows of stage 0 to stage 1, micro-batch 0") {
    ++receive;
  }
  const std::string text = trace_events(program, 1, {{receive, 1234567, 1300000}}, /*step=*/7);
  const Json events = events_of(text);
  const Json& bar = events.at(0);
  EXPECT_EQ(bar["ph"], "X");  // names come with step 0 only
  EXPECT_EQ(bar["ts"].dump(), "1234.567");
  EXPECT_EQ(bar["dur"].dump(), "65.433");
  EXPECT_EQ(bar["args"]["step"], 7);
  EXPECT_EQ(bar["args"]["what"], "receive from rank 0: rows of stage 0 to stage 1, micro-batch 0");
}

TEST(Trace, CountsTheMicroBatchesThatARankHolds) {
  const Program program = program_of(chain_plan({1, 1}, 3), 2);
  int most = 0, last = -1;
  for (const Json& event : events_of(trace_events(program, 0, one_by_one(program, 0, 0), 1))) {
    if (event["ph"] != "C") continue;
    last = event["args"]["micro-batches"];
    most = std::max(most, last);
  }
  EXPECT_EQ(most, 3);
  EXPECT_EQ(last, 0);
}

TEST(Trace, WhatIsForetoldIsWhatTheSimulatorSaysAndHasProcessesOfItsOwn) {
  Plan plan = chain_plan({1, 1}, 2);
  for (Stage& stage : plan.stages)
    stage.predicted = Prediction{.forward_ns = 100, .backward_ns = 200};
  const Program program = program_of(plan, 2);
  double end = 0;
  for (const Json& event : events_of(foretold_events(plan, program, 5000, 0))) {
    expect_sound(event);
    EXPECT_GE(event["pid"].get<int>(), 1'000'000);
    if (event["ph"] == "X")
      end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
  }
  // By hand: forwards of stage 0 until 200, of stage 1 until 300, its backwards until 700, and the
  // last one of stage 0 until 900.
  EXPECT_DOUBLE_EQ(end, 5.9);
}

}  // namespace
}  // namespace rannc::plan
