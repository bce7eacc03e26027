#include <gtest/gtest.h>

#include "plan/graphs.h"
#include "rannc/cost/cost_table.h"
#include "rannc/ir/text.h"
#include "rannc/plan/simulate.h"
#include "rannc/predict/step_memory.h"
#include "rannc/predict/step_time.h"

namespace rannc::predict {
namespace {

using plan::chain_plan;

/// Every node takes 100 ns forward and 200 ns backward per row; no workspace.
cost::GraphProfile profile_of(const ir::Graph& graph) {
  cost::CostTable table;
  table.rows = {1, 2};
  table.node.assign(graph.nodes.size(), {{.forward_ns = 100, .backward_ns = 200},
                                         {.forward_ns = 200, .backward_ns = 400}});
  return cost::fold(graph, table, {});
}

/// One host, whose messages take no time.
cost::Cluster one_host(int ranks) {
  const cost::Link link{.bandwidth_bytes_per_s = 1e18, .latency_ns = 0};
  return {.devices_per_host = ranks, .intra_host = link, .inter_host = link};
}

double step_of(const plan::Plan& plan, const ir::Graph& graph, const std::vector<int64_t>& rows,
               const StepCosts& costs) {
  return step_time(plan::lower(plan, graph, rows, /*training=*/true), plan, graph,
                   profile_of(graph), one_host(static_cast<int>(rows.size())), costs)
      .ns;
}

TEST(StepTime, HasTheOptimizerStepAtItsEnd) {
  // Two rows: 200 forward, 400 backward; the step of w0 takes 50.
  const ir::Graph graph = plan::chain(1, /*loss=*/true);
  EXPECT_NEAR(step_of(chain_plan({1}, 1), graph, {2}, {.optimizer_ns = {50}}), 650, 1e-6);
}

TEST(StepTime, ReplicasThatShareTheOptimizersStateStepAPartAndGatherTheParameters) {
  // 300 of computing. The 16 bytes of w0 take 16 around a ring of two: there and back before the
  // step of 50, or there, half of a step, and back.
  const ir::Graph graph = plan::chain(1, /*loss=*/true);
  plan::Plan plan = chain_plan({2}, 1);
  const cost::Link link{.bandwidth_bytes_per_s = 1e9, .latency_ns = 0};
  const cost::Cluster cluster{.devices_per_host = 2, .intra_host = link, .inter_host = link};
  const auto step_ns = [&](bool shard_optimizer) {
    plan.shard_optimizer = shard_optimizer;
    return step_time(plan::lower(plan, graph, {1, 1}, /*training=*/true), plan, graph,
                     profile_of(graph), cluster,
                     {.cores = 2, .copy_ns_per_byte = 0, .optimizer_ns = {50}})
        .ns;
  };
  EXPECT_NEAR(step_ns(false), 300 + 16 + 50, 1e-6);
  EXPECT_NEAR(step_ns(true), 300 + 8 + 25 + 8, 1e-6);
}

TEST(StepTime, RanksShareTheCoresOfTheirHost) {
  // A row on each of two replicas: 300 side by side, 600 when both share a core.
  const ir::Graph graph = plan::chain(1, /*loss=*/true);
  EXPECT_NEAR(step_of(chain_plan({2}, 1), graph, {1, 1}, {.cores = 2}), 300, 1e-6);
  EXPECT_NEAR(step_of(chain_plan({2}, 1), graph, {1, 1}, {.cores = 1}), 600, 1e-6);
}

TEST(StepTime, OfAPipelineIsThePeriodOfItsLoop) {
  // Stage 0: F 0-100-200; stage 1: F 100-200-300, B 300-500-700; stage 0: B 500-700-900. The next
  // step starts then. On one core the work of both stages lines up: 2 * 2 * 300.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  const plan::Plan plan = chain_plan({1, 1}, 2);
  EXPECT_NEAR(step_of(plan, graph, {2, 0}, {.cores = 2}), 900, 1e-6);
  EXPECT_NEAR(step_of(plan, graph, {2, 0}, {.cores = 1}), 1200, 1e-6);
  // Adding the gradients of the second micro-batch (16 bytes) to those of the first: stage 1 ends
  // at 716, where stage 0 begins its last 216.
  EXPECT_NEAR(step_of(plan, graph, {2, 0}, {.cores = 2, .accumulate_ns_per_byte = 1}), 932, 1e-6);
}

TEST(StepTime, WaitsAreWhatAStepIsBesidesItsWork) {
  // The pipeline above: each rank works 600 of 900.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  const plan::Plan plan = chain_plan({1, 1}, 2);
  const plan::Program program = plan::lower(plan, graph, {2, 0}, /*training=*/true);
  const StepTime time =
      step_time(program, plan, graph, profile_of(graph), one_host(2), {.cores = 2});
  ASSERT_EQ(time.idle_ns.size(), 2u);
  EXPECT_NEAR(time.idle_ns[0], 300, 1e-6);
  EXPECT_NEAR(time.idle_ns[1], 300, 1e-6);
}

TEST(StepTime, MeasuredActionsReplaceTheProfile) {
  // Two replicas: 10 forward and 20 backward each, the reduction 5 of waiting and 7 of work, and 3
  // around all that; the loss takes nothing.
  const ir::Graph graph = plan::chain(1, /*loss=*/true);
  const plan::Plan plan = chain_plan({2}, 1);
  const plan::Program program = plan::lower(plan, graph, {1, 1}, /*training=*/true);
  StepCosts costs{.cores = 2, .around_ns = {3, 3}};
  for (const std::vector<plan::Action>& actions : program.actions) {
    std::vector<MeasuredAction>& measured = costs.measured.emplace_back(actions.size());
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind == plan::ActionKind::forward) measured[i].work_ns = 10;
      if (actions[i].kind == plan::ActionKind::backward) measured[i].work_ns = 20;
      if (actions[i].kind == plan::ActionKind::reduce_gradients) measured[i] = {7, 5};
    }
  }
  const StepTime time = step_time(program, plan, graph, profile_of(graph), one_host(2), costs);
  EXPECT_NEAR(time.ns, 45, 1e-6);
  EXPECT_NEAR(time.idle_ns[1], 5, 1e-6);
}

TEST(StepTime, MessagesFlyAsLongAsMeasured) {
  // Stage 0: F 0-10; 15 later stage 1: F 25-35, B 35-55; 15 later stage 0: B 70-90.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  const plan::Plan plan = chain_plan({1, 1}, 1);
  const plan::Program program = plan::lower(plan, graph, {1, 0}, /*training=*/true);
  StepCosts costs{.cores = 2};
  for (const std::vector<plan::Action>& actions : program.actions) {
    std::vector<MeasuredAction>& measured = costs.measured.emplace_back(actions.size());
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind == plan::ActionKind::forward) measured[i].work_ns = 10;
      if (actions[i].kind == plan::ActionKind::backward) measured[i].work_ns = 20;
      if (actions[i].kind != plan::ActionKind::send) continue;
      const plan::Transfer& transfer = program.transfers[static_cast<size_t>(actions[i].index)];
      if (transfer.from != transfer.to) measured[i].wait_ns = 15;
    }
  }
  EXPECT_NEAR(step_time(program, plan, graph, profile_of(graph), one_host(2), costs).ns, 90, 1e-6);
}

/// As profile_of(), on an accelerator: issuing a node takes the host `host_ns`, there and back.
cost::GraphProfile issued_in(int64_t host_ns, const ir::Graph& graph) {
  cost::CostTable table;
  table.rows = {1, 2};
  const auto costs = [&](int64_t ns) {
    return cost::NodeCost{.forward_ns = ns,
                          .backward_ns = 2 * ns,
                          .forward_host_ns = host_ns,
                          .backward_host_ns = host_ns};
  };
  table.node.assign(graph.nodes.size(), {costs(100), costs(200)});
  return cost::fold(graph, table, {});
}

double two_clocks(const plan::Plan& plan, const ir::Graph& graph, const std::vector<int64_t>& rows,
                  const StepCosts& costs) {
  return step_time(plan::lower(plan, graph, rows, /*training=*/true), plan, graph,
                   issued_in(150, graph), one_host(static_cast<int>(rows.size())), costs)
      .ns;
}

TEST(StepTime, ADeviceComputesWhatItsHostHasIssuedWhileTheHostGoesOn) {
  // F 100 and B 200 on the device, each issued in 150. F0 ends with its issue, 150; B0 is issued
  // 150-300 and computed 150-350; F1 is issued 300-450, and so computed 350-450; B1 450-650. The
  // larger of each pair would be 150 + 200 + 150 + 200.
  const ir::Graph graph = plan::chain(1, /*loss=*/true);
  plan::Plan plan = chain_plan({1}, 2);
  plan.schedule = plan::Schedule::one_f_one_b;
  EXPECT_NEAR(two_clocks(plan, graph, {2}, {}), 650, 1e-6);
  EXPECT_NEAR(two_clocks(plan, graph, {2}, {.in_order = true}), 650, 1e-6);
}

TEST(StepTime, InOrderTheHostWaitsForNoMessage) {
  // Stage 0 computes until 150, with its host. Buffered, the host of stage 1 then issues 150-300,
  // and both wait for the loss; B 300-500, and on stage 0 500-700. In order all hosts issue at
  // once: F of stage 1 is computed 150-250, B 250-450, and on stage 0 450-650.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  const plan::Plan plan = chain_plan({1, 1}, 1);
  EXPECT_NEAR(two_clocks(plan, graph, {1, 0}, {.cores = 2}), 700, 1e-6);
  EXPECT_NEAR(two_clocks(plan, graph, {1, 0}, {.cores = 2, .in_order = true}), 650, 1e-6);
}

TEST(StepTime, InOrderMessagesOfARankFollowEachOther) {
  // 16 bytes for the first row of stage 0 take 160, so the second, ready at 200, leaves at 260 and
  // is there at 420: F 420-520, B 520-720 and 720-920; the gradients follow each other 720-880 and
  // 920-1080, B 880-1080 and 1080-1280; the step of 50.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  const plan::Plan plan = chain_plan({1, 1}, 2);
  const cost::Link link{.bandwidth_bytes_per_s = 1e8, .latency_ns = 0};
  const cost::Cluster cluster{.devices_per_host = 2, .intra_host = link, .inter_host = link};
  const plan::Program program = plan::lower(plan, graph, {2, 0}, /*training=*/true);
  StepCosts costs{.cores = 2, .optimizer_ns = {50, 50}, .in_order = true};
  const StepTime time = step_time(program, plan, graph, profile_of(graph), cluster, costs);
  const plan::Simulation simulation =
      plan::simulate_in_order(program, {.forward_ns = {100, 100},
                                        .backward_ns = {200, 200},
                                        .transfer_ns = {{0, 160}, {0, 0}},
                                        .transfer_back_ns = {},
                                        .reduce_ns = {}});
  EXPECT_NEAR(time.ns, simulation.end_ns + 50, 1e-6);
  EXPECT_NEAR(time.idle_ns[0], time.ns - 650, 1e-6);
}

TEST(StepTime, CountsTheRowsThatARankReallyHas) {
  // Three rows on two replicas: the larger share has two.
  const ir::Graph graph = plan::chain(1, /*loss=*/true);
  EXPECT_NEAR(step_of(chain_plan({2}, 1), graph, {2, 1}, {.cores = 2}), 600, 1e-6);
  EXPECT_NEAR(step_of(chain_plan({2}, 1), graph, {2, 1}, {.cores = 1}), 900, 1e-6);
}

std::vector<double> peaks_of(const plan::Plan& plan, const ir::Graph& graph,
                             const std::vector<int64_t>& rows,
                             const std::vector<cost::SavedStorage>& saved) {
  return step_peak_bytes(plan::lower(plan, graph, rows, /*training=*/true), plan, graph,
                         profile_of(graph), saved, {.state_factor = 2});
}

TEST(StepMemory, GradientsComeWhileWhatWasSavedGoes) {
  // Two parameters of 16 bytes with two copies each in the optimizer: 96. Two rows of x and of
  // n0's result are kept: 160 when forward has ended. Backward of n1 adds 16 and frees 32.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  plan::Plan plan = chain_plan({1}, 1);
  plan.stages[0].nodes = {"n0", "n1"};
  EXPECT_EQ(peaks_of(plan, graph, {2}, {{{0}, {16, 32}}, {{1}, {16, 32}}}),
            std::vector<double>{160});
}

TEST(StepMemory, WhatALinearLayersBackwardNeedsComesBesideItsGradient) {
  // 96 of state, and 20 for a while in each backward: in which the gradient of 16 lies, or not.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  plan::Plan plan = chain_plan({1}, 1);
  plan.stages[0].nodes = {"n0", "n1"};
  const auto peaks = [&](bool adds_in_place) {
    cost::GraphProfile profile = profile_of(graph);
    for (cost::ProfileNode& node : profile.nodes) {
      node.adds_in_place = adds_in_place;
      node.workspace_bytes.assign(profile.rows.size(), 20);
    }
    return step_peak_bytes(plan::lower(plan, graph, {2}, /*training=*/true), plan, graph, profile,
                           {}, {.state_factor = 2});
  };
  EXPECT_EQ(peaks(false), std::vector<double>{96 + 16 + 20});
  EXPECT_EQ(peaks(true), std::vector<double>{96 + 16 + 16 + 20});
}

TEST(StepMemory, GradientsOfReplicasShareAnArray) {
  // As above on each of two ranks, but the first gradient, n1's, brings the array of both: 32
  // before n1's 32 of saved bytes go.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  plan::Plan plan = chain_plan({2}, 1);
  plan.stages[0].nodes = {"n0", "n1"};
  EXPECT_EQ(peaks_of(plan, graph, {2, 2}, {{{0}, {16, 32}}, {{1}, {16, 32}}}),
            std::vector<double>{192});
}

TEST(StepMemory, ReplicasShareTheOptimizersState) {
  // Three ranks, two parameters of 16 bytes: 32, and of their state, 64, a third. Eight numbers
  // are three shards of three, so the array of gradients has 36; so has that by which the
  // parameters come back, which is more than what the optimizer computes with: of the largest
  // parameter a rank steps three quarters at most, and of all a third.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  plan::Plan plan = chain_plan({3}, 1);
  plan.stages[0].nodes = {"n0", "n1"};
  plan.shard_optimizer = true;
  const auto peaks = [&](double largest) {
    const OptimizerMemory optimizer{
        .state_factor = 2, .largest_bytes = {largest, 20}, .all_bytes = {3, 3}};
    return step_peak_bytes(plan::lower(plan, graph, {1, 1, 1}, /*training=*/true), plan, graph,
                           profile_of(graph), {}, optimizer);
  };
  EXPECT_NEAR(peaks(20)[0], 32 + 64 / 3. + 36 + 36, 1e-6);
  EXPECT_NEAR(peaks(80)[0], 32 + 64 / 3. + 36 + 60 + 2, 1e-6);
  // A bucket for each parameter: two arrays of 24 rather than of 36, of which one is filled while
  // the other one travels, so that both are there.
  const OptimizerMemory nothing{.state_factor = 2};
  plan.stages[0].ranks = {0, 1, 2};
  plan.bucket_bytes = 16;
  EXPECT_NEAR(step_peak_bytes(plan::lower(plan, graph, {1, 1, 1}, /*training=*/true), plan, graph,
                              profile_of(graph), {}, nothing, /*bucket_bytes=*/16)[0],
              32 + 64 / 3. + 2 * 24 + 2 * 24, 1e-6);
}

TEST(StepMemory, MicroBatchesShareACastOfAWeight) {
  // A parameter of 16 bytes with two copies in the optimizer: 48. Each micro-batch of one row keeps
  // 16 of x, and both the 8 of the cast, which go with the last backward: the gradient of 16 comes
  // while 16 of x go. Recomputed, each has its own: 16 of x, 8, and the gradient.
  const ir::Graph graph = ir::parse(R"(graph g(%x) -> (%loss)
  input x: float32[B, 4] apart(0)
  parameter w0: float32[4] grad
  node cast = aten::to.dtype(%w0, 15, false, false, none) -> %w16
    result w16: bfloat16[4] grad
  node n0 = aten::mul.Tensor(%x, %w16) -> %y
    result y: float32[B, 4] apart(0) grad
  node n1 = aten::mean(%y, none) -> %loss
    result loss: float32[] mean grad
)");
  plan::Plan plan = chain_plan({1}, 2);
  plan.stages[0].nodes = {"n0", "n1"};
  const std::vector<cost::SavedStorage> saved = {{{1}, {16, 32}}, {{1}, {8, 8}}};
  EXPECT_EQ(peaks_of(plan, graph, {2}, saved), std::vector<double>{48 + 2 * 16 + 8});
  plan.schedule = plan::Schedule::one_f_one_b;
  EXPECT_EQ(peaks_of(plan, graph, {2}, saved), std::vector<double>{48 + 8 + 16 + 16});
  plan.stages[0].recompute = true;
  EXPECT_EQ(peaks_of(plan, graph, {2}, saved), std::vector<double>{48 + 16 + 8 + 16});
}

TEST(StepMemory, BothSidesOfACutKeepWhatBothSave) {
  // Both n0 and n1 save n0's result, 32 bytes. Stage 0: 48 of state, 32 saved, and 32 on their way
  // out; when that is over, with the forward passes, the place for the gradient, 32.
  // Stage 1: 48, 32 saved; after its backward 48 + 16 of gradient + 32 of n0's gradient.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  EXPECT_EQ(peaks_of(chain_plan({1, 1}, 1), graph, {2, 0}, {{{0, 1}, {16, 32}}}),
            (std::vector<double>{112, 96}));
}

/// n0's result goes to n1 and, past it, to n2; n3 is the loss. Each has a parameter.
ir::Graph residual() {
  plan::GraphMaker maker;
  const ir::ValueId x = maker.input("x");
  const ir::ValueId a = maker.node("n0", {x, maker.parameter("w0")});
  const ir::ValueId b = maker.node("n1", {a, maker.parameter("w1")});
  const ir::ValueId c = maker.node("n2", {a, b, maker.parameter("w2")});
  maker.graph.outputs = {maker.reduced("n3", {c, maker.parameter("w3")}, ir::RowKind::mean)};
  return maker.graph;
}

TEST(StepMemory, AResidualConnectionsGradientWaits) {
  // The gradient of n0's result waits while n1's backward runs. By then there are 64 bytes of
  // parameters and 32 of the gradients of n3 and n2. 32 of two rows wait: as much as there is at
  // the end, when all 64 of gradients have come. Of eight rows, 128.
  const ir::Graph graph = residual();
  plan::Plan plan = chain_plan({1}, 1);
  plan.stages[0].nodes = {"n0", "n1", "n2", "n3"};
  const auto peak = [&](int64_t rows) {
    return step_peak_bytes(plan::lower(plan, graph, {rows}, /*training=*/true), plan, graph,
                           profile_of(graph), {}, {})[0];
  };
  EXPECT_EQ(peak(2), 128);
  EXPECT_EQ(peak(8), 224);
}

TEST(StepMemory, WhatIsOnTheHostTakesNoneOfTheDevicesMemory) {
  // As above, of eight rows: n0's gradient no longer waits on the device. 64 bytes of parameters
  // and as many of gradients remain. In two stages its 128 bytes do not come and go, either.
  ir::Graph graph = residual();
  const auto peaks = [&](const plan::Plan& plan, const std::vector<int64_t>& rows) {
    return step_peak_bytes(plan::lower(plan, graph, rows, /*training=*/true), plan, graph,
                           profile_of(graph), {}, {});
  };
  plan::Plan one = chain_plan({1}, 1), two = chain_plan({1, 1}, 1);
  one.stages[0].nodes = {"n0", "n1", "n2", "n3"};
  two.stages[0].nodes = {"n0"};
  two.stages[1].nodes = {"n1", "n2", "n3"};
  EXPECT_EQ(peaks(one, {8}), std::vector<double>{224});
  EXPECT_EQ(peaks(two, {8, 0})[0], 16 + 128);
  graph[*graph.find_value("n0_out")].on_host = true;
  EXPECT_EQ(peaks(one, {8}), std::vector<double>{128});
  EXPECT_EQ(peaks(two, {8, 0})[0], 16 + 16);
}

TEST(StepMemory, TheOptimizerComputesWhenTheActivationsAreGone) {
  // Two parameters of 16 bytes with two copies each: 96; gradients: 32; then 40 beside the larger
  // one, and 3 for each.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  plan::Plan plan = chain_plan({1}, 1);
  plan.stages[0].nodes = {"n0", "n1"};
  const OptimizerMemory optimizer{
      .state_factor = 2, .largest_bytes = {40, 20}, .all_bytes = {3, 3}};
  EXPECT_EQ(step_peak_bytes(plan::lower(plan, graph, {2}, /*training=*/true), plan, graph,
                            profile_of(graph), {}, optimizer),
            std::vector<double>{96 + 32 + 46});
}

TEST(StepMemory, AMessageStaysWithASenderThatGoesOnAtOnce) {
  // Rank 0: F0 F1 B0 F2 B1 F3 B2 B3, and 100 bytes beside each backward. Where it waits for rank 1
  // before a backward, what it has just sent is gone by then; else its 16 bytes are still there.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  const plan::Plan plan = chain_plan({1, 1}, 4, plan::Schedule::one_f_one_b);
  const auto peak = [&](size_t slow) {
    cost::GraphProfile profile = profile_of(graph);
    for (cost::ProfileNode& node : profile.nodes) node.workspace_bytes.assign(2, 100);
    for (auto* times : {&profile.nodes[slow].forward_ns, &profile.nodes[slow].backward_ns}) {
      for (double& time : *times) time *= 10;
    }
    return step_peak_bytes(plan::lower(plan, graph, {4, 0}, /*training=*/true), plan, graph,
                           profile, {}, {})[0];
  };
  EXPECT_EQ(peak(0), peak(1) + 16);
}

TEST(StepMemory, WhatARankHandsToItselfIsHeldUntilItIsTaken) {
  // n1 is on the other rank, n2 on the same one as n0.
  const ir::Graph graph = residual();
  const plan::Plan plan = plan::interleaved_plan(2, 2, 2);
  const auto peak = [&](const std::vector<cost::SavedStorage>& saved) {
    return peaks_of(plan, graph, {16, 0}, saved)[0];
  };
  // What n2 saves is what it was handed, which was there before. What n0 saves is not: 128 bytes of
  // each of two micro-batches of eight rows.
  EXPECT_EQ(peak({{{2}, {16, 32}}}), peak({}));
  EXPECT_EQ(peak({{{0}, {16, 32}}}), peak({}) + 2 * 128);
}

TEST(StepMemory, RecomputeKeepsInputsUntilTheBackward) {
  // Stage 1, two micro-batches of one row: 48 of state. Two inputs of 16, and the 64 saved bytes of
  // the one that is run again, whose own input is among them: 48 + 16 + 64; with the gradient of
  // the first, and without its input, 48 + 16 + 64 again, while 16 are on their way back.
  const ir::Graph graph = plan::chain(2, /*loss=*/true);
  plan::Plan plan = chain_plan({1, 1}, 2);
  plan.stages[1].recompute = true;
  EXPECT_EQ(peaks_of(plan, graph, {2, 0}, {{{1}, {64, 128}}})[1], 144);
}

}  // namespace
}  // namespace rannc::predict
