#include "rannc/plan/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "plan/graphs.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

ir::Graph two_stages() {
  GraphMaker maker;
  const auto x = maker.input("x", /*requires_grad=*/true);
  const auto a = maker.node("n0", {x, maker.parameter("w0")});
  maker.graph.outputs = {maker.node("n1", {a, maker.parameter("w1")}),
                         maker.reduced("loss", {a}, ir::RowKind::mean)};
  return maker.graph;
}

/// Stage 0 on ranks 0 and 1, stage 1 on ranks 2, 3 and 4; two micro-batches of 6 rows.
Program good() {
  Plan plan = chain_plan({2, 3}, 2);
  plan.stages[1].nodes.push_back("loss");
  return lower(plan, two_stages(), {4, 4, 4, 0, 0}, true);
}

Action& first(Program& program, Rank rank, ActionKind kind) {
  return *std::ranges::find(program.actions[rank], kind, &Action::kind);
}
void erase_first(Program& program, Rank rank, ActionKind kind) {
  auto& actions = program.actions[rank];
  actions.erase(std::ranges::find(actions, kind, &Action::kind));
}
/// Swaps the first action of the kind with its successor, or its predecessor.
void delay_first(Program& program, Rank rank, ActionKind kind) {
  auto& actions = program.actions[rank];
  const auto found = std::ranges::find(actions, kind, &Action::kind);
  std::iter_swap(found, found + 1);
}
void advance_first(Program& program, Rank rank, ActionKind kind) {
  auto& actions = program.actions[rank];
  const auto found = std::ranges::find(actions, kind, &Action::kind);
  std::iter_swap(found, found - 1);
}
Transfer& boundary(Program& program) {
  return *std::ranges::find_if(program.transfers, [](const Transfer& transfer) {
    return transfer.from_stage == 0 && transfer.to_stage == 1;
  });
}

struct Damage {
  const char* what;
  std::function<void(Program&)> apply;
  const char* message;
};

const Damage kDamages[] = {
    {"rows shifted at the sender",
     [](Program& program) {
       ++boundary(program).source.begin;
       ++boundary(program).source.end;
     },
     "arrive as rows"},
    {"a row lost",
     [](Program& program) {
       --boundary(program).source.end;
       --boundary(program).target.end;
     },
     "not exactly once"},
    {"a message sent twice",
     [](Program& program) { program.transfers.push_back(boundary(program)); }, "not exactly once"},
    {"an input cut short",
     [](Program& program) {
       --program.transfers[0].source.end;
       --program.transfers[0].target.end;
     },
     "not exactly once"},
    {"a gradient lost", [](Program& program) { boundary(program).grad = false; }, "is lost"},
    {"a wrong sender", [](Program& program) { boundary(program).from = 2; }, "do not run there"},
    {"a message without an order",
     [](Program& program) { erase_first(program, 0, ActionKind::send); }, "is never sent"},
    {"a receive without an order",
     [](Program& program) { erase_first(program, 2, ActionKind::receive); },
     "before its inputs have arrived"},
    {"a forward before its input",
     [](Program& program) { advance_first(program, 3, ActionKind::forward); },
     "before its inputs have arrived"},
    {"a forward left out", [](Program& program) { erase_first(program, 1, ActionKind::forward); },
     "at the wrong place"},
    {"a forward twice",
     [](Program& program) { program.actions[1].push_back(first(program, 1, ActionKind::forward)); },
     "runs forward twice"},
    {"a result sent before it is there",
     [](Program& program) { delay_first(program, 0, ActionKind::forward); }, "at the wrong place"},
    {"a backward left out", [](Program& program) { erase_first(program, 4, ActionKind::backward); },
     "at the wrong place"},
    {"a backward before its gradient",
     [](Program& program) { advance_first(program, 0, ActionKind::backward); },
     "before its gradients have arrived"},
    {"a stage released early",
     [](Program& program) { delay_first(program, 0, ActionKind::backward); }, "at the wrong place"},
    {"a stage never released",
     [](Program& program) { erase_first(program, 0, ActionKind::release); }, "never finishes"},
    {"a reduction left out",
     [](Program& program) { erase_first(program, 3, ActionKind::reduce_gradients); },
     "is left out"},
    {"a reduction of a stranger",
     [](Program& program) { first(program, 3, ActionKind::reduce_gradients).index = 1; },
     "is left out"},
    {"a reduction over too few ranks",
     [](Program& program) { program.reductions[0].ranks.pop_back(); },
     "not over the ranks of its stages"},
    {"a parameter reduced twice",
     [](Program& program) {
       program.reductions[0].parameters.push_back(program.reductions[1].parameters[0]);
     },
     "is reduced twice"},
    {"scalar outputs forgotten",
     [](Program& program) { erase_first(program, 4, ActionKind::reduce_outputs); },
     "the scalar outputs are not reduced"},
    {"outputs never returned",
     [](Program& program) { erase_first(program, 0, ActionKind::return_outputs); },
     "before the outputs are returned"},
    {"outputs returned before they have arrived",
     [](Program& program) { advance_first(program, 1, ActionKind::return_outputs); },
     "returned at the wrong place"},
    {"buffers joined by one replica only",
     [](Program& program) {
       auto& actions = program.actions[0];
       const auto at = std::ranges::find(actions, ActionKind::reduce_outputs, &Action::kind);
       actions.insert(at, {.kind = ActionKind::sync_buffers, .stage = 0});
     },
     "joined on 1 of its 2 ranks"},
    {"an output left out", [](Program& program) { program.outputs.pop_back(); },
     "an output of the graph is not returned"},
    {"an output named twice",
     [](Program& program) { program.outputs.push_back(program.outputs.back()); },
     "ascending, each once"},
    {"a gap between shares", [](Program& program) { ++program.shares[1][1][0].begin; },
     "leave a gap"},
    {"a slice too long", [](Program& program) { ++program.split.slices[0][0].end; },
     "does not follow the one before"},
};

TEST(VerifyProgram, AcceptsWhatLowerMakes) { EXPECT_NO_THROW(verify(good(), two_stages())); }

TEST(VerifyProgram, FindsEveryKindOfDamage) {
  for (const Damage& damage : kDamages) {
    Program program = good();
    damage.apply(program);
    try {
      verify(program, two_stages());
      ADD_FAILURE() << damage.what << " was not found";
    } catch (const PlanError& error) {
      EXPECT_NE(std::string(error.what()).find(damage.message), std::string::npos)
          << damage.what << ": " << error.what();
    }
  }
}

TEST(VerifyProgram, WantsInputsToArriveBeforeTheyArePassedOn) {
  // The last stage returns the input x, so it must get it.
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto a = maker.node("n0", {x});
  maker.graph.outputs = {maker.node("n1", {a}), x};
  Program program = lower(chain_plan({1, 1}, 1), maker.graph, {2, 2}, true);
  verify(program, maker.graph);
  for (Transfer& transfer : program.transfers) {
    if (transfer.value == x && transfer.to_stage == 1) transfer.value = a;
  }
  EXPECT_THROW(verify(program, maker.graph), PlanError);
}

TEST(VerifyProgram, KnowsWhatComesBackWhenBackwardComesFirst) {
  Plan plan = chain_plan({2, 3}, 2, Schedule::one_f_one_b);
  plan.stages[1].nodes.push_back("loss");
  const ir::Graph graph = two_stages();
  const auto error_after = [&](const std::function<void(Program&)>& apply) -> std::string {
    Program program = lower(plan, graph, {4, 4, 4, 0, 0}, true, Outputs::all);
    verify(program, graph);
    apply(program);
    try {
      verify(program, graph);
    } catch (const PlanError& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto to_user = [](Program& program) -> Transfer& {
    return *std::ranges::find(program.transfers, kUser, &Transfer::to_stage);
  };
  EXPECT_EQ(error_after([&](Program& program) { to_user(program).grad = true; }),
            "the program is wrong: the gradient of 'n1_out' is sent, but there is none");
  EXPECT_EQ(error_after([&](Program& program) { program.outputs = {graph.outputs[1]}; }),
            "the program is wrong: 'n1_out' goes to the user, who does not get it");
  EXPECT_EQ(error_after([&](Program& program) { program.outputs = {graph.outputs[0]}; }),
            "the program is wrong: backward starts from the loss, but its outputs do not hold one");
}

TEST(VerifyProgram, MissesNoOutput) {
  Program program = good();
  ir::Graph graph = two_stages();
  graph.outputs.push_back(*graph.find_value("n0_out"));
  EXPECT_THROW(verify(program, graph), PlanError);
}

}  // namespace
}  // namespace rannc::plan
