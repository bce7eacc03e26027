#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "plan/graphs.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"
#include "rannc/plan/program.h"
#include "rannc/plan/simulate.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

template <class Run>
std::string error_of(Run run) {
  try {
    run();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no error";
}

/// "recv 3", "F 0.1" (stage.micro-batch), "send 4'" (a gradient), ...
std::string words(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    const std::string where =
        std::to_string(action.stage) + "." + std::to_string(action.micro_batch);
    const std::string what =
        std::to_string(action.index) + (action.direction == Direction::backward ? "'" : "");
    switch (action.kind) {
      case ActionKind::forward:
        text += "F " + where;
        break;
      case ActionKind::backward:
        text += "B " + where;
        break;
      case ActionKind::send:
        text += "send " + what;
        break;
      case ActionKind::receive:
        text += "recv " + what;
        break;
      case ActionKind::sync_buffers:
        text += "sync " + std::to_string(action.stage);
        break;
      case ActionKind::reduce_outputs:
        text += "outputs";
        break;
      case ActionKind::return_outputs:
        text += "return";
        break;
      case ActionKind::reduce_gradients:
        text += "reduce " + what;
        break;
      case ActionKind::release:
        text += "free " + where;
        break;
    }
    text += "; ";
  }
  return text;
}

TEST(Lower, OrdersFillDrainOnBothSidesOfABoundary) {
  // One micro-batch of 2 + 1 rows. Stage 0 on rank 0 takes all 3, one from rank 1: transfers 0, 1.
  // Transfer 2 is the boundary; 3 and 4 bring each rank its output rows.
  const Program program = lower(chain_plan({1, 1}, 1), chain(2), {2, 1}, true);
  EXPECT_EQ(words(program.actions[0]),
            "send 0; recv 0; recv 1; F 0.0; send 2; recv 3; return; send 3'; "
            "recv 2'; B 0.0; free 0.0; ");
  EXPECT_EQ(words(program.actions[1]),
            "send 1; recv 2; F 1.0; send 3; send 4; recv 4; return; send 4'; "
            "recv 3'; recv 4'; B 1.0; send 2'; free 1.0; ");
  const Transfer& own = program.transfers[4];  // row 2 of the batch is row 0 of rank 1
  EXPECT_EQ(own.source, (RowRange{2, 3}));
  EXPECT_EQ(own.target, (RowRange{0, 1}));
  EXPECT_EQ(own.to_stage, kUser);
}

TEST(Lower, RunsBackwardBeforeTheOutputsAreJoinedUnderOneForwardOneBackward) {
  const Program program =
      lower(chain_plan({1, 1}, 2, Schedule::one_f_one_b), chain(2, true), {2, 0}, true);
  // Micro-batches of one row; transfers 0 and 2 are the inputs, 1 and 3 the boundary.
  EXPECT_EQ(words(program.actions[0]),
            "send 0; send 2; recv 0; F 0.0; send 1; recv 2; F 0.1; send 3; "
            "recv 1'; B 0.0; free 0.0; recv 3'; B 0.1; free 0.1; outputs; ");
  EXPECT_EQ(words(program.actions[1]),
            "recv 1; F 1.0; B 1.0; send 1'; free 1.0; recv 3; F 1.1; B 1.1; send 3'; free 1.1; "
            "outputs; ");
}

TEST(Lower, WithoutTrainingHasNoGradientsAndFreesAfterForward) {
  const Program program = lower(chain_plan({1, 1}, 1), chain(2), {2, 0}, false);
  EXPECT_EQ(words(program.actions[0]), "send 0; recv 0; F 0.0; send 1; free 0.0; recv 2; ");
  EXPECT_EQ(words(program.actions[1]), "recv 1; F 1.0; send 2; free 1.0; ");
  EXPECT_TRUE(std::ranges::none_of(program.transfers, &Transfer::grad));
}

TEST(Lower, MovesNothingBetweenRanksUnderPureDataParallelism) {
  Plan plan;
  plan.micro_batches = 2;
  plan.stages = {stage({"n0"}, {0, 1, 2})};
  const Program program = lower(plan, chain(1), {3, 5, 1}, true);
  EXPECT_TRUE(std::ranges::all_of(
      program.transfers, [](const Transfer& transfer) { return transfer.from == transfer.to; }));
  ASSERT_EQ(program.reductions.size(), 1u);
  EXPECT_EQ(program.reductions[0].ranks, (std::vector<Rank>{0, 1, 2}));
}

TEST(Lower, ReturnsInputGradientsOnlyWhereTheyAreWanted) {
  GraphMaker maker;
  const auto x = maker.input("x", /*requires_grad=*/true);
  const auto mask = maker.input("mask");
  const auto table = maker.unbatched_input("table");
  maker.graph.outputs = {maker.node("n0", {x, mask, table})};
  Plan plan = chain_plan({1}, 1);
  const Program program = lower(plan, maker.graph, {1, 1}, true);
  verify(program, maker.graph);
  for (const Transfer& transfer : program.transfers) {
    if (transfer.from_stage != kUser) continue;
    EXPECT_EQ(transfer.grad, transfer.value == x);
    EXPECT_NE(transfer.value, table);  // every rank has its own
  }
  EXPECT_EQ(words(program.actions[1]), "send 1; send 3; recv 5; return; send 5'; recv 1'; ");
}

TEST(Lower, SumsTiedParametersOverTheUnionOfTheirRanksAfterTheOthers) {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto tied = maker.parameter("tied");
  const auto w0 = maker.parameter("w0");
  const auto w2 = maker.parameter("w2");
  const auto free = maker.parameter("free");
  const auto a = maker.node("n0", {x, tied, w0});
  const auto b = maker.node("n1", {a, maker.row_free_node("t", {free})});
  maker.graph.outputs = {maker.node("n2", {b, w2, maker.row_free_node("u", {tied})})};
  const Program program = lower(chain_plan({2, 1, 2}, 1), maker.graph, {4, 4, 4, 4, 4}, true);
  verify(program, maker.graph);
  // Stage 1 has one rank, so `free` needs no sum. The last stage ends its backwards first.
  ASSERT_EQ(program.reductions.size(), 3u);
  EXPECT_EQ(program.reductions[0], (Reduction{{w2}, {3, 4}, {2}}));
  EXPECT_EQ(program.reductions[1], (Reduction{{w0}, {0, 1}, {0}}));
  EXPECT_EQ(program.reductions[2], (Reduction{{tied}, {0, 1, 3, 4}, {0, 2}}));
}

TEST(Lower, SumsAParameterThatForwardWritesWhereverItIsWritten) {
  // CLIP's `self.scale.clamp_(max=100)`: the first stage, which the write belongs to, changed its
  // copy without the gradient that the second one has, and ranks came apart.
  const ir::Graph graph = ir::infer_rows(ir::parse(R"(graph clip(%x) -> (%z)
  input x: float32[B, 4] apart(0)
  parameter scale: float32[] grad
  parameter w: float32[4] grad
  node clamp = aten::clamp_(%scale, none, 100.0) -> %clamped writes %scale no_grad
    result clamped: float32[] grad shares %scale
  node n0 = aten::mul.Tensor(%x, %w) -> %y
    result y: float32[B, 4] apart(0) grad
  node n1 = aten::mul.Tensor(%y, %clamped) -> %z
    result z: float32[B, 4] apart(0) grad
)"));
  const ir::ValueId scale{1};
  const Program program = lower(chain_plan({1, 1}, 1), graph, {4, 4}, true);
  verify(program, graph);
  ASSERT_EQ(program.reductions.size(), 1u);  // w is on one rank
  EXPECT_EQ(program.reductions[0], (Reduction{{scale}, {0, 1}, {0, 1}}));
}

TEST(Lower, ClonesWhatDoesNotDependOnTheRows) {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto scale = maker.row_free_node("scale", {maker.parameter("w")});
  const auto a = maker.node("n0", {x, scale});
  const auto b = maker.node("n1", {a, scale});
  maker.graph.outputs = {b};
  const auto found = crossings(chain_plan({1, 1}, 1), maker.graph, maker.graph.outputs);
  EXPECT_EQ(found, (std::vector<Crossing>{{x, kUser, 0}, {a, 0, 1}, {b, 1, kUser}}));
}

TEST(Lower, SendsASkipConnectionStraightToItsUsers) {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto a = maker.node("n0", {x});
  const auto b = maker.node("n1", {a});
  const auto c = maker.node("n2", {a, b, x});
  maker.graph.outputs = {c, b};
  const Plan plan = chain_plan({1, 1, 1}, 1);
  EXPECT_EQ(crossings(plan, maker.graph, maker.graph.outputs),
            (std::vector<Crossing>{{x, kUser, 0},
                                   {x, kUser, 2},
                                   {a, 0, 1},
                                   {a, 0, 2},
                                   {b, 1, 2},
                                   {b, 1, kUser},
                                   {c, 2, kUser}}));
  EXPECT_EQ(stage_outputs(plan, maker.graph, maker.graph.outputs),
            (std::vector<std::vector<ir::ValueId>>{{a}, {b}, {c}}));
}

TEST(Lower, GivesOutputsThatNoStageComputesToTheLastStage) {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto w = maker.parameter("w");
  const auto a = maker.node("n0", {x});
  const auto b = maker.node("n1", {a});
  maker.graph.outputs = {b, x, w, b};
  const Plan plan = chain_plan({1, 2}, 2);
  EXPECT_EQ(stage_outputs(plan, maker.graph, maker.graph.outputs),
            (std::vector<std::vector<ir::ValueId>>{{a}, {x, w, b}}));
  EXPECT_EQ(
      crossings(plan, maker.graph, maker.graph.outputs),
      (std::vector<Crossing>{
          {x, kUser, 0}, {x, kUser, 1}, {a, 0, 1}, {x, 1, kUser}, {w, 1, kUser}, {b, 1, kUser}}));
  const Program program = lower(plan, maker.graph, {2, 0, 1}, true);
  verify(program, maker.graph);
  // The parameter travels once, to every rank, those without rows, too.
  std::vector<Rank> receivers;
  for (const Transfer& transfer : program.transfers) {
    if (transfer.value == w) receivers.push_back(transfer.to);
  }
  EXPECT_EQ(receivers, (std::vector<Rank>{0, 1, 2}));
}

TEST(Lower, WeighsThePartsOfAMeanByTheReceiverAndOfASumByTheSender) {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto mean = maker.reduced("n0", {x}, ir::RowKind::mean);
  const auto sum = maker.reduced("m0", {x}, ir::RowKind::sum);
  maker.graph.outputs = {maker.reduced("n1", {mean, sum}, ir::RowKind::mean)};
  Plan plan = chain_plan({3, 2}, 1);
  plan.stages[0].nodes = {"n0", "m0"};
  const Program program = lower(plan, maker.graph, {6, 0, 0, 0, 0}, true);
  verify(program, maker.graph);
  // Senders hold rows 0-2, 2-4, 4-6; receivers 0-3 and 3-6. Sender 1 gives one row to each.
  std::map<std::tuple<uint32_t, Rank, Rank>, double> weight;
  for (const Transfer& transfer : program.transfers) {
    if (transfer.from_stage == 0) {
      weight[{transfer.value.index, transfer.from, transfer.to}] = transfer.weight;
    }
  }
  const auto of = [&](ir::ValueId value, Rank from, Rank to) {
    return weight.at({value.index, from, to});
  };
  EXPECT_DOUBLE_EQ(of(mean, 0, 3), 2.0 / 3);
  EXPECT_DOUBLE_EQ(of(mean, 1, 3), 1.0 / 3);
  EXPECT_DOUBLE_EQ(of(mean, 1, 4), 1.0 / 3);
  EXPECT_DOUBLE_EQ(of(sum, 0, 3), 1);
  EXPECT_DOUBLE_EQ(of(sum, 1, 3), 0.5);
  EXPECT_EQ(weight.size(), 8u);
}

TEST(Lower, KeepsMixedRowsWhole) {
  GraphMaker maker;
  const auto a = maker.node("n0", {maker.input("x")});
  const auto mixed = maker.reduced("n1", {a}, ir::RowKind::mixed);
  maker.graph.outputs = {mixed};
  const Program program = lower(chain_plan({1, 1}, 1), maker.graph, {2, 1, 0}, true);
  verify(program, maker.graph);
  EXPECT_EQ(std::ranges::count(program.transfers, mixed, &Transfer::value), 3);
  EXPECT_EQ(
      error_of([&] {
        (void)lower(chain_plan({1, 1}, 2), maker.graph, {2, 1, 0}, true);
      }),
      "the rows of the batch interact in 'n1_out', so stage 1 needs the whole batch: 1 replica "
      "and 1 micro-batch, not 1 replicas and 2 micro-batches");
  maker.graph[mixed].dims = {{0, 1}, {0, 1}};
  EXPECT_EQ(
      error_of([&] {
        (void)lower(chain_plan({1, 1}, 1), maker.graph, {2, 1, 0}, true);
      }),
      "the output 'n1_out' has a size that depends on the batch, but its rows interact, so no "
      "rank's rows can be told apart in it (module '', unknown source).\n  Return a reduced value, "
      "or compute it outside the model.");
  // Beside another output it is left out, unless the user wants all of them.
  maker.graph.outputs = {mixed, a};
  const Program rest = lower(chain_plan({1, 1}, 1), maker.graph, {2, 1, 0}, true);
  verify(rest, maker.graph);
  EXPECT_EQ(rest.outputs, (std::vector<ir::ValueId>{a}));
  EXPECT_THROW((void)lower(chain_plan({1, 1}, 1), maker.graph, {2, 1, 0}, true, Outputs::all),
               PlanError);
  // The only rank of a job gets it whole.
  Plan alone = chain_plan({}, 1);
  alone.stages = {stage({"n0", "n1"}, {0})};
  const Program whole = lower(alone, maker.graph, {3}, true);
  verify(whole, maker.graph);
  EXPECT_EQ(std::ranges::count(whole.transfers, mixed, &Transfer::value), 1);
}

TEST(Lower, HandsOutTheRowsOfAMixedOutputWhereItsShapeTellsThemApart) {
  GraphMaker maker;
  const auto a = maker.node("n0", {maker.input("x")});
  const auto mixed = maker.reduced("n1", {a}, ir::RowKind::mixed);
  maker.graph[mixed].dims = {{4, 0}, {0, 1}};
  maker.graph[mixed].rows.dim = 1;
  maker.graph.outputs = {mixed};
  const Program program = lower(chain_plan({1, 1}, 1), maker.graph, {2, 1, 0}, true);
  verify(program, maker.graph);
  // Stage 1 on rank 1 holds rows 0-2; ranks 0 and 1 asked for rows 0-1 and row 2.
  std::vector<RowRange> sources;
  for (const Transfer& transfer : program.transfers) {
    if (transfer.value == mixed) sources.push_back(transfer.source);
  }
  EXPECT_EQ(sources, (std::vector<RowRange>{{0, 2}, {2, 3}}));
}

TEST(Lower, JoinsRunningStatisticsWhereAStageHasReplicas) {
  GraphMaker maker;
  const auto mean = maker.buffer("mean");
  const auto var = maker.buffer("var");
  const auto a = maker.node("n0", {maker.input("x")});
  ir::Node& norm = maker.graph[ir::NodeId{0}];
  norm.op = "aten::batch_norm";
  norm.inputs.insert(norm.inputs.end(),
                     {ir::None{}, ir::None{}, mean, var, true, 0.1, 1e-5, false});
  norm.writes = {mean, var};
  maker.graph.outputs = {maker.node("n1", {a})};
  for (const bool training : {true, false}) {
    const Program shared = lower(chain_plan({2, 1}, 2), maker.graph, {4, 4, 4}, training);
    verify(shared, maker.graph);
    for (const Rank rank : {0, 1, 2}) {
      const auto syncs =
          std::ranges::count(shared.actions[rank], ActionKind::sync_buffers, &Action::kind);
      EXPECT_EQ(syncs, rank < 2 ? 1 : 0);
    }
    const Program single = lower(chain_plan({1, 2}, 2), maker.graph, {4, 4, 4}, training);
    EXPECT_EQ(words(single.actions[0]).find("sync"), std::string::npos);
  }
}

TEST(Lower, RefusesAShareOfOneValuePerChannelForBatchNorm) {
  GraphMaker maker;
  const auto a = maker.node("n0", {maker.input("x")});
  ir::Node& norm = maker.graph[ir::NodeId{0}];
  norm.op = "aten::batch_norm";
  norm.module = "layers.0.bn";
  norm.inputs.insert(norm.inputs.end(),
                     {ir::None{}, ir::None{}, ir::None{}, ir::None{}, true, 0.1, 1e-5, false});
  maker.graph.outputs = {maker.node("n1", {a})};
  // Micro-batch 0 takes 3 of the 5 rows: 2 for rank 0 and 1 for rank 1.
  EXPECT_EQ(error_of([&] {
              (void)lower(chain_plan({2, 1}, 2), maker.graph, {2, 2, 1}, true);
            }),
            "module 'layers.0.bn': rank 1 would normalise micro-batch 0 over a single value per "
            "channel: its share has 1 of the 5 rows of the batch (torch: Expected more than 1 "
            "value per channel when training, got input size [1, 4]).\n"
            "  Try a larger batch, fewer micro-batches (pipeline_num) or replicas (replica_nums), "
            "or drop_last=True.");
  // An empty share takes no part, and without training the rows stay apart.
  Plan replicated;
  replicated.stages = {stage({"n0", "n1"}, {0, 1, 2})};
  EXPECT_NO_THROW((void)lower(replicated, maker.graph, {2, 0, 2}, true));
  maker.graph[ir::NodeId{0}].inputs[5] = false;
  EXPECT_NO_THROW((void)lower(chain_plan({2, 1}, 2), maker.graph, {2, 2, 1}, true));
  maker.graph[ir::NodeId{0}].inputs[5] = true;

  // Of the whole batch: a share of one row is enough, a batch of one row is not.
  maker.graph[ir::NodeId{0}].whole_batch = true;
  EXPECT_NO_THROW((void)lower(chain_plan({2, 1}, 1), maker.graph, {1, 1, 0}, true));
  EXPECT_EQ(error_of([&] {
              (void)lower(chain_plan({2, 1}, 1), maker.graph, {0, 1, 0}, true);
            }),
            "module 'layers.0.bn' would normalise the whole batch over a single value per channel: "
            "it has 1 row (torch: Expected more than 1 value per channel when training, got input "
            "size [1, 4]).\n  Try a batch of at least 2 rows on all ranks together, or "
            "drop_last=True.");
}

TEST(Lower, NeedsALossWhenBackwardComesFirst) {
  const auto error_with = [](const ir::Graph& graph) {
    return error_of([&] {
      (void)lower(chain_plan({1, 1}, 1, Schedule::one_f_one_b), graph, {2, 2}, true);
    });
  };
  const std::string begin =
      "schedule '1f1b' runs backward before the outputs are returned, so it needs a model that "
      "returns its one loss in training mode, but ";
  const std::string end = ".\n  Use schedule='gpipe', or return the loss from forward().";
  EXPECT_EQ(
      error_with(chain(2)),
      begin + "no output is a floating number (a 0-dim tensor) that requires a gradient" + end);

  GraphMaker two;
  const auto a = two.node("n0", {two.input("x")});
  const auto loss = two.reduced("n1", {a}, ir::RowKind::mean);
  two.graph.outputs = {loss, a, two.reduced("n2", {a}, ir::RowKind::sum)};
  EXPECT_EQ(loss_of(two.graph), std::nullopt);
  EXPECT_EQ(error_with(two.graph),
            begin + "2 outputs are numbers that require a gradient: 'n1_out', 'n2_out'" + end);

  // Where one is made of the other, it is the loss.
  two.graph.outputs.back() = two.reduced("n3", {two.node("m", {loss, a})}, ir::RowKind::mean);
  EXPECT_EQ(loss_of(two.graph), two.graph.outputs.back());

  GraphMaker mixed;
  const auto b = mixed.node("n0", {mixed.input("x")});
  mixed.graph.outputs = {mixed.reduced("n1", {b}, ir::RowKind::mixed)};
  EXPECT_EQ(loss_of(mixed.graph), std::nullopt);
  EXPECT_EQ(error_with(mixed.graph),
            begin + "'n1_out' is neither a mean nor a sum over the rows of the batch" + end);
}

/// n0 -> n1 = the loss; besides, the user gets n0, its input, and a sum without a gradient.
GraphMaker loss_among_others() {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto a = maker.node("n0", {x, maker.parameter("w")});
  const auto count = maker.reduced("m1", {a}, ir::RowKind::sum);
  maker.graph[count].requires_grad = false;
  const auto loss = maker.reduced("n1", {a}, ir::RowKind::mean);
  maker.graph.outputs = {loss, a, x, count, loss};
  return maker;
}

TEST(Lower, SendsOnlyTheLossAndNumbersWithoutAGradientWhenBackwardComesFirst) {
  const GraphMaker maker = loss_among_others();
  const ir::ValueId loss = maker.graph.outputs[0], rows = maker.graph.outputs[1];
  const ir::ValueId x = maker.graph.outputs[2], count = maker.graph.outputs[3];
  Plan plan = chain_plan({1, 2}, 2, Schedule::one_f_one_b);
  plan.stages[1].nodes = {"m1", "n1"};
  ASSERT_EQ(loss_of(maker.graph), loss);
  const auto to_user = [](const Program& program) {
    std::map<ir::ValueId, int> rows_of;
    for (const Transfer& transfer : program.transfers) {
      if (transfer.to_stage == kUser) rows_of[transfer.value] += transfer.target.size();
    }
    return rows_of;
  };

  const Program trained = lower(plan, maker.graph, {4, 1, 0}, true);
  verify(trained, maker.graph);
  EXPECT_EQ(trained.outputs, (std::vector<ir::ValueId>{count, loss}));
  EXPECT_TRUE(to_user(trained).empty());
  // Nor does the last stage, which would hand x out, take it.
  EXPECT_TRUE(std::ranges::none_of(trained.transfers, [&](const Transfer& transfer) {
    return transfer.value == x && transfer.to_stage == 1;
  }));

  // Asked for all of them: 5 rows of each arrive, and nothing comes back.
  const Program all = lower(plan, maker.graph, {4, 1, 0}, true, Outputs::all);
  verify(all, maker.graph);
  EXPECT_EQ(to_user(all), (std::map<ir::ValueId, int>{{x, 5}, {rows, 5}}));
  for (const Transfer& transfer : all.transfers) {
    EXPECT_EQ(transfer.grad, transfer.from_stage == 0 && transfer.to_stage == 1);
  }

  const Program inference = lower(plan, maker.graph, {4, 1, 0}, false);
  verify(inference, maker.graph);
  EXPECT_EQ(to_user(inference), to_user(all));

  plan.schedule = Schedule::gpipe;
  const Program filled = lower(plan, maker.graph, {4, 1, 0}, true);
  verify(filled, maker.graph);
  EXPECT_EQ(to_user(filled), to_user(all));
}

/// Carries numbered rows along the transfers and checks that each arrives once, in order.
void check_rows_arrive(const Program& program) {
  using Rows = std::vector<int64_t>;
  const int64_t kEmpty = -1;
  std::map<std::tuple<uint32_t, int, Rank, int>, Rows> received;  // value, stage, rank, k
  std::vector<Rows> outputs;
  std::vector<Rows> batch;  // of each rank
  int64_t number = 0;
  for (int64_t rows : program.split.local_rows) {
    batch.emplace_back();
    outputs.emplace_back(static_cast<size_t>(rows), kEmpty);
    for (int64_t row = 0; row < rows; ++row) batch.back().push_back(number++);
  }
  const auto micro_batch = [&](int k) {
    Rows rows;
    for (size_t rank = 0; rank < batch.size(); ++rank) {
      const RowRange slice = program.split.slices[rank][k];
      rows.insert(rows.end(), batch[rank].begin() + slice.begin, batch[rank].begin() + slice.end);
    }
    return rows;
  };
  const auto share = [&](int stage, Rank rank, int k) {
    const auto& ranks = program.stage_ranks[stage];
    return program.shares[stage][std::ranges::find(ranks, rank) - ranks.begin()][k];
  };

  for (const Transfer& transfer : program.transfers) {
    const int k = transfer.micro_batch;
    Rows source;
    if (transfer.from_stage == kUser) {
      source = batch[transfer.from];
    } else {
      // Stages work row by row, so a result holds the rows of the share.
      const Rows all = micro_batch(k);
      const RowRange own = share(transfer.from_stage, transfer.from, k);
      source.assign(all.begin() + own.begin, all.begin() + own.end);
    }
    const bool to_user = transfer.to_stage == kUser;
    Rows& target = to_user ? outputs[transfer.to]
                           : received[{transfer.value.index, transfer.to_stage, transfer.to, k}];
    if (!to_user) {
      target.resize(static_cast<size_t>(share(transfer.to_stage, transfer.to, k).size()), kEmpty);
    }
    ASSERT_EQ(transfer.source.size(), transfer.target.size());
    for (int64_t row = 0; row < transfer.source.size(); ++row) {
      int64_t& slot = target.at(static_cast<size_t>(transfer.target.begin + row));
      ASSERT_EQ(slot, kEmpty) << "a row arrives twice";
      slot = source.at(static_cast<size_t>(transfer.source.begin + row));
    }
  }

  EXPECT_EQ(outputs, batch);
  for (const auto& [where, rows] : received) {
    const auto [value, stage, rank, k] = where;
    const Rows all = micro_batch(k);
    const RowRange own = share(stage, rank, k);
    EXPECT_EQ(rows, Rows(all.begin() + own.begin, all.begin() + own.end));
  }
}

TEST(Lower, BringsEveryRowExactlyOnceInOrderForEveryPairOfReplicaCounts) {
  const ir::Graph graph = chain(2);
  for (int a = 1; a <= 5; ++a) {
    for (int b = 1; b <= 5; ++b) {
      for (int64_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
        for (int64_t uneven = 0; uneven <= 7; ++uneven) {
          std::vector<int64_t> rows(static_cast<size_t>(a + b), 0);
          rows[0] = uneven;
          rows[1] += 3;
          rows.back() += 2;
          const Program program = lower(chain_plan({a, b}, micro_batches), graph, rows, true);
          check_rows_arrive(program);
          ASSERT_NO_THROW(verify(program, graph));
          ASSERT_NO_THROW((void)timeline(program));
        }
      }
    }
  }
}

TEST(Lower, HandlesAThousandRanks) {
  // Seconds would show here: 8 stages of 125 replicas, 64 micro-batches.
  const std::vector<int> replicas(8, 125);
  const ir::Graph graph = chain(8, /*loss=*/true);
  const Plan plan = chain_plan(replicas, 64, Schedule::one_f_one_b);
  const Program program = lower(plan, graph, std::vector<int64_t>(1000, 64), true);
  verify(program, graph);
  EXPECT_EQ(program.reductions.size(), 8u);
}

}  // namespace
}  // namespace rannc::plan
