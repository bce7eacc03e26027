#include "rannc/partition/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace rannc::partition {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The graph, cluster, request and plan of docs/planner-files.md.
const char* const kTiny = R"(
{"format": "rannc-graph-profile", "version": 1, "name": "tiny", "dtype": "float32", "rows": [1, 4],
 "inputs": [{"name": "x", "bytes_per_row": 400}],
 "params": [{"id": "emb.weight", "bytes": 8000}, {"id": "mlp.weight", "bytes": 4000}],
 "nodes": [
  {"name": "emb",  "op": "embedding", "inputs": ["x"], "params": ["emb.weight"],
   "outputs": [{"bytes_per_row": 1000}],
   "forward_ns": [100, 400], "backward_ns": [200, 800], "saved_bytes": [400, 1600]},
  {"name": "mlp",  "op": "linear", "inputs": ["emb"], "params": ["mlp.weight"],
   "outputs": [{"bytes_per_row": 1000}],
   "forward_ns": [250, 700], "backward_ns": [500, 1400], "saved_bytes": [1000, 4000],
   "workspace_bytes": [64, 64]},
  {"name": "head", "op": "linear", "inputs": ["mlp"], "params": ["emb.weight"],
   "outputs": [{"fixed_bytes": 4}],
   "forward_ns": [100, 400], "backward_ns": [200, 800], "saved_bytes": [1000, 4000]}]})";

struct Case {
  cost::GraphProfile profile;
  cost::Cluster cluster;
  Request request;
  plan::Plan plan;
  [[nodiscard]] Evaluation evaluate() const {
    return partition::evaluate(profile, cluster, request, plan);
  }
};

plan::Stage stage(std::vector<std::string> nodes, std::vector<plan::Rank> ranks,
                  bool recompute = false) {
  plan::Stage made;
  made.nodes = std::move(nodes);
  made.ranks = std::move(ranks);
  made.recompute = recompute;
  return made;
}

Case tiny() {
  Case c;
  c.profile = cost::graph_profile_from_json(kTiny);
  c.cluster = {.hosts = 2,
               .devices_per_host = 2,
               .device_memory_bytes = 100000,
               .intra_host = {1e9, 10},
               .inter_host = {1e8, 100}};
  c.request.global_batch = 8;
  c.plan.schedule = plan::Schedule::one_f_one_b;
  c.plan.micro_batches = 2;
  c.plan.stages = {stage({"emb", "mlp"}, {0, 1}), stage({"head"}, {2})};
  return c;
}

/// A chain of nodes "n0", "n1", ... that cost 10 ns forward and 20 ns backward per row and pass on
/// `bytes_per_row`; node i has parameter "w<i>" of `param_bytes`. One host, links of 1 byte per ns.
Case chain(int nodes, double bytes_per_row = 0, double param_bytes = 0) {
  Case c;
  c.profile.rows = {1};
  c.profile.inputs = {{"x", {bytes_per_row, 0}}};
  for (int i = 0; i < nodes; ++i) {
    c.profile.params.push_back({"w" + std::to_string(i), param_bytes});
    cost::ProfileNode node;
    node.name = "n" + std::to_string(i);
    node.inputs = {{i == 0, static_cast<uint32_t>(i == 0 ? 0 : i - 1), 0}};
    node.params = {static_cast<uint32_t>(i)};
    node.outputs = {{{bytes_per_row, 0}, true}};
    node.forward_ns = {10};
    node.backward_ns = {20};
    node.saved_bytes = {100};
    node.workspace_bytes = {0};
    c.profile.nodes.push_back(node);
  }
  c.cluster = {.hosts = 1,
               .devices_per_host = 8,
               .device_memory_bytes = 1e9,
               .intra_host = {1e9, 0},
               .inter_host = {1e9, 0}};
  c.request.schedules = {plan::Schedule::gpipe, plan::Schedule::one_f_one_b,
                         plan::Schedule::interleaved};
  c.request.max_interleave = 2;
  for (int i = 0; i < nodes; ++i) {
    c.plan.stages.push_back(stage({"n" + std::to_string(i)}, {i}));
  }
  return c;
}

TEST(Evaluate, GivesTheNumbersOfTheWorkedExample) {
  const Evaluation found = tiny().evaluate();
  EXPECT_THAT(found.problems, IsEmpty());
  // 127320 + 4/3 * 8000 / 0.1 + 400, see the end of docs/planner-files.md.
  EXPECT_NEAR(found.iteration_ns, 127320 + 4.0 / 3 * 80000 + 400, 1e-6);

  ASSERT_EQ(found.stages.size(), 2U);
  const StageEvaluation& first = found.stages[0];
  EXPECT_EQ(first.rows, 2);
  // emb at 2 rows: 200; mlp: 250 + 450 / 3 = 400.
  EXPECT_NEAR(first.forward_ns, 600, 1e-9);
  EXPECT_NEAR(first.backward_ns, 1200, 1e-9);
  EXPECT_NEAR(first.reduce_ns, 4020, 1e-9);
  EXPECT_EQ(first.param_bytes, 12000);
  EXPECT_EQ(first.gradient_bytes, 12000);
  EXPECT_EQ(first.optimizer_bytes, 24000);
  EXPECT_NEAR(first.activation_bytes, 5600, 1e-9);
  EXPECT_EQ(first.buffer_bytes, 4000);
  EXPECT_EQ(first.workspace_bytes, 64);
  EXPECT_NEAR(first.peak_bytes, 57664, 1e-9);
  const StageEvaluation& second = found.stages[1];
  EXPECT_EQ(second.rows, 4);
  EXPECT_EQ(second.forward_ns, 400);
  EXPECT_EQ(second.backward_ns, 800);
  EXPECT_EQ(second.reduce_ns, 0);
  EXPECT_EQ(second.activation_bytes, 4000);
  EXPECT_EQ(second.buffer_bytes, 8000);
  EXPECT_EQ(second.peak_bytes, 44000);
}

TEST(Evaluate, CountsTheLongerOfTwoClocks) {
  Case c = tiny();
  // The device takes 200 + 400 at 2 rows, 400 + 800 backward; the host 350 to issue it.
  c.profile.nodes[0].forward_host_ns = {350, 350};
  EXPECT_NEAR(c.evaluate().stages[0].forward_ns, 600, 1e-9);
  // And 300 for the other: the longer sum counts, not the sum of what is longer, 350 + 400.
  c.profile.nodes[1].forward_host_ns = {300, 300};
  EXPECT_NEAR(c.evaluate().stages[0].forward_ns, 650, 1e-9);
  EXPECT_NEAR(c.evaluate().stages[0].backward_ns, 1200, 1e-9);
  c.profile.nodes[0].backward_host_ns = {1300, 1300};
  EXPECT_NEAR(c.evaluate().stages[0].backward_ns, 1300, 1e-9);
}

TEST(Evaluate, FillDrainTakesThePipelinesLength) {
  Case c = chain(3);
  c.request.global_batch = 4;
  c.plan.micro_batches = 4;
  // One row each: forwards (3 + 3) * 10, backwards (3 + 3) * 20.
  EXPECT_EQ(c.evaluate().iteration_ns, 180);
  // All four micro-batches stay until the backward.
  EXPECT_EQ(c.evaluate().stages[1].activation_bytes, 400);
}

TEST(Evaluate, OneForwardOneBackwardKeepsAsManyAsStagesBehind) {
  Case c = chain(3);
  c.plan.schedule = plan::Schedule::one_f_one_b;
  c.request.global_batch = 4;
  c.plan.micro_batches = 4;
  const Evaluation found = c.evaluate();
  EXPECT_THAT(found.problems, IsEmpty());
  EXPECT_EQ(found.iteration_ns, 180);
  EXPECT_EQ(found.stages[0].activation_bytes, 300);
  EXPECT_EQ(found.stages[1].activation_bytes, 200);
  EXPECT_EQ(found.stages[2].activation_bytes, 100);
}

TEST(Evaluate, RecomputeRunsTheForwardAgainAndKeepsOnlyInputs) {
  Case c = chain(2, /*bytes_per_row=*/7);
  c.request.global_batch = 2;
  c.plan.micro_batches = 2;
  c.plan.stages[0].recompute = true;
  const Evaluation found = c.evaluate();
  EXPECT_EQ(found.stages[0].backward_ns, 30);
  // Two micro-batches of the graph input (7 bytes each), and one stage's worth of saved bytes.
  EXPECT_EQ(found.stages[0].activation_bytes, 2 * 7 + 100);
  EXPECT_EQ(found.stages[1].activation_bytes, 200);
  // Buffers: 2 * (7 in + 7 out); the graph input is in none.
  EXPECT_EQ(found.stages[0].buffer_bytes, 14);
  EXPECT_EQ(found.stages[1].buffer_bytes, 14);
}

TEST(Evaluate, ChargesTheLargestShareOfAnUnevenBatch) {
  Case c = chain(1);
  c.request.global_batch = 7;
  c.plan.micro_batches = 2;
  c.plan.stages[0].ranks = {0, 1, 2};
  // ceil(7 / (2 * 3)) = 2 rows: 2 * (20 + 40).
  EXPECT_EQ(c.evaluate().stages[0].rows, 2);
  EXPECT_EQ(c.evaluate().iteration_ns, 120);
}

TEST(Evaluate, ATransferLastsAsLongAsItsBusiestDevice) {
  Case c = chain(2, /*bytes_per_row=*/60);
  c.request.global_batch = 6;
  c.cluster.intra_host.latency_ns = 5;
  c.plan.stages[0].ranks = {0, 1};
  c.plan.stages[1].ranks = {2, 3, 4};
  // Shares of 6 rows: {3, 3} to {2, 2, 2}. Rank 0 sends 2 + 1 rows, rank 3 receives 1 + 1: the
  // busiest device moves 3 rows = 180 bytes, so 185 ns each way.
  // Stage 0: 3 rows forward 30; stage 1: 2 rows 20 + 40; back to stage 0: 60.
  EXPECT_EQ(c.evaluate().iteration_ns, 30 + 185 + 60 + 185 + 60);
}

TEST(Evaluate, NetworkCardsOfAHostAreShared) {
  Case c = chain(2, /*bytes_per_row=*/60);
  c.request.global_batch = 4;
  c.cluster.hosts = 2;
  c.cluster.devices_per_host = 2;
  c.cluster.inter_host = {1e9, 7};
  c.plan.stages[0].ranks = {0, 1};
  c.plan.stages[1].ranks = {2, 3};
  // Each rank sends 2 rows = 120 bytes to its partner; one card per host carries 240.
  // Compute: 20 + 20 + 40 + 40.
  EXPECT_EQ(c.evaluate().iteration_ns, 120 + 2 * (7 + 240));
  c.cluster.links_per_host = 2;
  EXPECT_EQ(c.evaluate().iteration_ns, 120 + 2 * (7 + 120));
}

TEST(Evaluate, PairsInsideAndBetweenHostsGoAtTheSameTime) {
  Case c = chain(2, /*bytes_per_row=*/60);
  c.request.global_batch = 2;
  c.cluster.hosts = 2;
  c.cluster.devices_per_host = 2;
  c.cluster.intra_host = {1e9, 100};
  c.cluster.inter_host = {1e9, 7};
  c.plan.stages[0].ranks = {0};
  c.plan.stages[1].ranks = {1, 2};
  // 60 bytes to rank 1 (100 + 60 ns) and 60 to rank 2 on the other host (7 + 60 ns).
  // Compute: stage 0 has 2 rows (20, 40), stage 1 has 1 row (10, 20).
  EXPECT_EQ(c.evaluate().iteration_ns, 90 + 2 * 160);
}

TEST(Evaluate, ValuesWithoutGradientDoNotComeBack) {
  Case c = chain(2, /*bytes_per_row=*/60);
  c.profile.nodes[0].outputs[0].grad = false;
  // Forward 10 + 60 + 10, then stage 1's backward ends at 100; stage 0's backward needs nothing of
  // it and has run from 10 to 30.
  EXPECT_EQ(c.evaluate().iteration_ns, 100);
}

TEST(Evaluate, AValueGoesToEachStageThatUsesIt) {
  Case c = chain(3, /*bytes_per_row=*/60);
  c.profile.nodes[2].inputs.push_back({false, 0, 0});
  // n0's value: to stage 1 (60 ns) and, at the same time, to stage 2; both in section 6 once.
  // 10 + 60 + 10 + 60 + 10 forward, then 20 + 60 + 20 + 60 + 20 back.
  const Evaluation found = c.evaluate();
  EXPECT_EQ(found.iteration_ns, 150 + 180);
  EXPECT_EQ(found.stages[0].buffer_bytes, 120);
  EXPECT_EQ(found.stages[2].buffer_bytes, 240);
}

TEST(Evaluate, TransfersOfOneKindFollowEachOther) {
  Case c = chain(2, /*bytes_per_row=*/60);
  c.request.global_batch = 3;
  c.request.micro_batches = {3};
  c.plan.micro_batches = 3;
  // Forwards end at 10, 20, 30; transfers at 70, 130, 190; stage 1 forwards end at 200.
  // Its backwards end at 220, 240, 260; transfers at 280, 340, 400; stage 0 ends at 420.
  EXPECT_EQ(c.evaluate().iteration_ns, 420);
}

TEST(Evaluate, ReducesInBucketsWhileTheLastBackwardRuns) {
  Case c = chain(1, 0, /*param_bytes=*/8);
  c.request.global_batch = 2;
  c.plan.stages[0].ranks = {0, 1};
  // One row: forward to 10, backward to 30. Ring of 2 ranks: 2 * 1/2 * 8 bytes = 8 ns.
  EXPECT_EQ(c.evaluate().iteration_ns, 38);
  c.request.reduction_buckets = 4;
  // Buckets of 2 ns are ready at 15, 20, 25, 30: the last ends at 32.
  EXPECT_EQ(c.evaluate().iteration_ns, 32);
  EXPECT_EQ(c.evaluate().stages[0].reduce_ns, 8);
  c.profile.params[0].bytes = 80;
  // Buckets of 20 ns, one after the other from 15 on.
  EXPECT_EQ(c.evaluate().iteration_ns, 95);
}

TEST(Evaluate, FrozenParametersAreNotReducedAndHaveNoState) {
  Case c = chain(1, 0, /*param_bytes=*/8);
  c.request.global_batch = 2;
  c.plan.stages[0].ranks = {0, 1};
  c.profile.params[0].trainable = false;
  const Evaluation found = c.evaluate();
  EXPECT_EQ(found.iteration_ns, 30);
  EXPECT_EQ(found.stages[0].param_bytes, 8);
  EXPECT_EQ(found.stages[0].gradient_bytes, 0);
  EXPECT_EQ(found.stages[0].optimizer_bytes, 0);
}

TEST(Evaluate, OptimizerBytesOfAParameterReplaceTheFactor) {
  Case c = chain(1, 0, /*param_bytes=*/8);
  EXPECT_EQ(c.evaluate().stages[0].optimizer_bytes, 16);
  c.profile.params[0].optimizer_bytes = 3;
  EXPECT_EQ(c.evaluate().stages[0].optimizer_bytes, 3);
}

TEST(Evaluate, GroupsThatSpanHostsShareTheCards) {
  Case c = chain(2, 0, /*param_bytes=*/100);
  c.request.global_batch = 2;
  c.cluster.hosts = 2;
  c.cluster.devices_per_host = 2;
  c.plan.stages[0].ranks = {0, 2};
  c.plan.stages[1].ranks = {1, 3};
  // Both groups reduce over both hosts: each at half the bandwidth, 100 bytes in 200 ns.
  EXPECT_EQ(c.evaluate().stages[0].reduce_ns, 200);
  c.profile.params[1].trainable = false;
  EXPECT_EQ(c.evaluate().stages[0].reduce_ns, 100);
  c.profile.params[1].trainable = true;
  c.cluster.links_per_host = 2;
  EXPECT_EQ(c.evaluate().stages[0].reduce_ns, 100);
}

TEST(Evaluate, TiedSetsOfTheSameStagesAreReducedOnce) {
  Case c = chain(2, 0, /*param_bytes=*/0);
  c.profile.params.push_back({"t0", 30});
  c.profile.params.push_back({"t1", 50});
  for (cost::ProfileNode& node : c.profile.nodes) node.params = {2, 3};
  c.cluster.intra_host.latency_ns = 3;
  // Stage 0's backward: transfers of 0 bytes take their latency, 10 + 3 + 10 + 20 + 3 + 20 = 66.
  // Ring over ranks 0 and 1: 80 bytes + 2 * 3.
  EXPECT_EQ(c.evaluate().iteration_ns, 66 + 86);
  EXPECT_EQ(c.evaluate().stages[0].reduce_ns, 0);
  EXPECT_EQ(c.evaluate().stages[1].param_bytes, 80);
}

TEST(Evaluate, TiedSetsWaitForEarlierSetsOfTheirStages) {
  Case c = chain(3);
  c.profile.params.push_back({"t01", 40});
  c.profile.params.push_back({"t12", 10});
  c.profile.nodes[0].params = {3};
  c.profile.nodes[1].params = {3, 4};
  c.profile.nodes[2].params = {4};
  // Backwards end at 90 (stage 0), 70, 50. Set {0, 1} from 90 to 130; then set {1, 2}, which could
  // have started at 70, from 130 to 140.
  EXPECT_EQ(c.evaluate().iteration_ns, 140);
}

TEST(Evaluate, InterleavedStagesShareTheirGroup) {
  Case c = chain(4, 0, /*param_bytes=*/8);
  c.plan.schedule = plan::Schedule::interleaved;
  c.plan.interleave = 2;
  c.plan.micro_batches = 2;
  c.request.global_batch = 2;
  for (size_t i = 0; i < 4; ++i) c.plan.stages[i].ranks = {static_cast<plan::Rank>(i % 2)};
  const Evaluation found = c.evaluate();
  EXPECT_THAT(found.problems, IsEmpty());
  // Group 0 (w = min(4, 2 + 2) = 4): F0,0 F0,1 F2,0 F2,1, then B2,0 B2,1 B0,0 B0,1.
  // Group 1 (w = 2): F1,0 F1,1, then F3,0 B3,0 F3,1 B3,1, then B1,0 B1,1.
  // Group 0 ends F2,1 at 40, group 1: F1 20, 30; F3,0 30-40, B3,0 -60, F3,1 -70, B3,1 -90.
  // B2,0 60-80, B2,1 90-110; group 1: B1,0 90-110 (after B2,0), B1,1 110-130 (after B2,1 at 110).
  // Group 0: B0,0 110-130, B0,1 130-150.
  EXPECT_EQ(found.iteration_ns, 150);
  // Each rank holds both of its stages: parameters, gradients and optimizer 16 + 16 + 32.
  // In flight, group 0: 4 forwards before the first backward; group 1: F1,0 F1,1 F3,0 = 3.
  EXPECT_EQ(found.stages[0].peak_bytes, 64 + 400);
  EXPECT_EQ(found.stages[2].peak_bytes, 64 + 400);
  EXPECT_EQ(found.stages[1].peak_bytes, 64 + 300);
  EXPECT_EQ(found.stages[3].activation_bytes, 100);
}

TEST(Evaluate, InterleavedRecomputeKeepsOneStagesWorthOfSavedBytes) {
  Case c = chain(4, /*bytes_per_row=*/7);
  c.plan.schedule = plan::Schedule::interleaved;
  c.plan.interleave = 2;
  c.plan.micro_batches = 2;
  c.request.global_batch = 2;
  for (size_t i = 0; i < 4; ++i) {
    c.plan.stages[i].ranks = {static_cast<plan::Rank>(i % 2)};
    c.plan.stages[i].recompute = true;
  }
  // Group 0: 4 in flight, each keeps 7 bytes (a graph input or a boundary value), plus 100 saved;
  // buffers 2 * 7 for stage 0 (out) and 2 * 14 for stage 2 (in and out).
  EXPECT_EQ(c.evaluate().stages[0].peak_bytes, 28 + 100 + 14 + 28);
}

TEST(Evaluate, TakesMemoryForActionsNotForTransfers) {
  // 150 stages that each send to all behind them have 11,175 transfers. Arrivals were once kept for
  // each micro-batch of each transfer: 1.5 GB. Their size is 0 and links have no
  // latency, so 8,192 micro-batches of 1 + 1 ns go through a pipeline of 150: m + S - 1 slots.
  constexpr int kStages = 150;
  constexpr int64_t kMicroBatches = 8192;
  Case c;
  c.profile.rows = {1};
  for (uint32_t k = 0; k < kStages; ++k) {
    cost::ProfileNode node;
    node.name = "n" + std::to_string(k);
    for (uint32_t before = 0; before < k; ++before) node.inputs.push_back({false, before, 0});
    node.outputs = {{.size = {0, 0}, .grad = true}};
    node.forward_ns = node.backward_ns = {1};
    node.saved_bytes = node.workspace_bytes = {0};
    c.profile.nodes.push_back(std::move(node));
    c.plan.stages.push_back(stage({"n" + std::to_string(k)}, {static_cast<plan::Rank>(k)}));
  }
  c.cluster.hosts = 1;
  c.cluster.devices_per_host = kStages;
  c.cluster.device_memory_bytes = 1;
  c.cluster.intra_host = {1e9, 0};
  c.request.global_batch = kMicroBatches;
  c.plan.schedule = plan::Schedule::gpipe;
  c.plan.micro_batches = kMicroBatches;
  const auto most_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before_kib = most_kib();
  const Evaluation evaluation = c.evaluate();
  EXPECT_LT(most_kib() - before_kib, 256 << 10);
  EXPECT_THAT(evaluation.problems, IsEmpty());
  EXPECT_EQ(evaluation.iteration_ns, 2 * (kMicroBatches + kStages - 1));
}

TEST(Evaluate, NamesNodesThatAreMissingUnknownOrTwice) {
  Case c = chain(3);
  c.plan.stages[1].nodes = {"n0", "nowhere"};
  EXPECT_THAT(c.evaluate().problems,
              ElementsAre("node 'n0' is in stage 0 and again in stage 1",
                          "stage 1 has node 'nowhere', which the graph does not have",
                          "node 'n1' is in no stage"));
  EXPECT_THAT(c.evaluate().stages, IsEmpty());
}

TEST(Evaluate, NamesAValueThatGoesBack) {
  Case c = chain(2);
  std::swap(c.plan.stages[0].nodes, c.plan.stages[1].nodes);
  EXPECT_THAT(c.evaluate().problems,
              ElementsAre("a value of 'n0' in stage 1 goes back to 'n1' in stage 0"));
}

TEST(Evaluate, NamesATornGroupAndStillGivesTheTime) {
  Case c = chain(2);
  c.profile.nodes[0].group = c.profile.nodes[1].group = "g";
  EXPECT_THAT(c.evaluate().problems,
              ElementsAre("group 'g' is torn: 'n0' is in stage 0, 'n1' in stage 1"));
  EXPECT_EQ(c.evaluate().iteration_ns, 60);
}

TEST(Evaluate, NamesRanksOutOfRangeRepeatedOrShared) {
  Case c = chain(3);
  c.plan.stages[0].ranks = {0, 0};
  c.plan.stages[1].ranks = {0, 8};
  c.plan.stages[2].ranks = {};
  EXPECT_THAT(
      c.evaluate().problems,
      ElementsAre("stage 0 lists rank 0 twice", "rank 0 is in stage 0 and in stage 1",
                  "stage 1 has rank 8, but the cluster has ranks 0 to 7", "stage 2 has no ranks"));
}

TEST(Evaluate, NamesASplitFinerThanTheBatch) {
  Case c = chain(1);
  c.request.global_batch = 4;
  c.plan.micro_batches = 2;
  c.plan.stages[0].ranks = {0, 1, 2};
  EXPECT_THAT(c.evaluate().problems,
              ElementsAre("stage 0: 2 micro-batches on 3 ranks need a global batch of 6, not 4"));
}

TEST(Evaluate, NamesChoicesThatTheRequestForbids) {
  Case c = chain(2);
  c.request.global_batch = 3;
  c.request.schedules = {plan::Schedule::one_f_one_b};
  c.request.recompute = Recompute::always;
  c.request.force.stages = 3;
  c.request.force.replicas = {2, 1};
  c.plan.micro_batches = 3;
  c.plan.stages[0].recompute = true;
  EXPECT_THAT(c.evaluate().problems,
              ElementsAre("the request does not allow schedule 'gpipe'",
                          "the request does not allow 3 micro-batches",
                          "stage 1 does not recompute, but the request says 'always'",
                          "the request forces stages = 3, the plan has 2",
                          "the request forces replicas = [2, 1], the plan has [1, 1]"));
}

TEST(Evaluate, NamesAStageThatDoesNotFit) {
  Case c = chain(1);
  c.cluster.device_memory_bytes = 110;
  EXPECT_THAT(c.evaluate().problems, IsEmpty());
  c.request.memory_margin = 0.1;
  EXPECT_THAT(c.evaluate().problems,
              ElementsAre("stage 0 needs 100 B on each rank, but a device offers 99 B"));
}

TEST(Evaluate, NamesInterleavedPlansThatCannotBe) {
  Case c = chain(4);
  c.plan.schedule = plan::Schedule::interleaved;
  c.plan.interleave = 2;
  c.request.global_batch = 3;
  c.request.micro_batches = {3};
  c.plan.micro_batches = 3;
  EXPECT_THAT(c.evaluate().problems,
              ElementsAre("3 micro-batches are not a multiple of 2 groups",
                          "stages 0 and 2 are one group, but list other ranks",
                          "stages 1 and 3 are one group, but list other ranks"));
}

}  // namespace
}  // namespace rannc::partition
