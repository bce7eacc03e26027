#include "rannc/partition/planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "partition/problems.h"
#include "rannc/partition/evaluate.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using testing::chain;
using testing::cluster;
using testing::Link;

Request batch(int64_t rows) {
  Request request;
  request.global_batch = rows;
  return request;
}

std::string error_of(const cost::GraphProfile& profile, const cost::Cluster& machine,
                     const Request& request, const PlannerOptions& options = {}) {
  try {
    (void)make_plan(profile, machine, request, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Planner, SharesTheBatchWhenNothingHasToBeReduced) {
  // No parameters, so no reduction: one stage on both ranks takes 2 rows * 300 ns = 600 ns; two
  // stages could not be faster, and one rank takes 1200.
  const plan::Plan plan = make_plan(chain({{}}), cluster(1, 2), batch(4));
  ASSERT_TRUE(plan.feasible);
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].ranks, (std::vector<plan::Rank>{0, 1}));
  EXPECT_EQ(plan.micro_batches, 1);
  EXPECT_EQ(plan.iteration_ns, 600);
}

TEST(Planner, CutsTheModelWhenParametersDoNotFitOneDevice) {
  // Each node has 100 bytes of parameters: with gradient and optimizer 400 bytes. A device of 500
  // holds one node, so there are two stages of one node each.
  const plan::Plan plan =
      make_plan(chain({{.param_bytes = 100}, {.param_bytes = 100}}), cluster(1, 2, 500), batch(2));
  ASSERT_TRUE(plan.feasible) << plan.reason;
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].nodes, std::vector<std::string>{"n0"});
  EXPECT_EQ(plan.stages[1].nodes, std::vector<std::string>{"n1"});
}

TEST(Planner, PredictsWhatEvaluateSays) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const cost::GraphProfile profile = testing::random_profile(random, 1 + trial % 9);
    const cost::Cluster machine = cluster(1 + trial % 2, 1 + trial % 3, 1500 + 20 * trial);
    Request request = batch(1 + trial % 7);
    request.reduction_buckets = 1 + trial % 3;
    const plan::Plan plan = make_plan(profile, machine, request);
    ASSERT_EQ(plan, make_plan(profile, machine, request)) << "trial " << trial;
    if (!plan.feasible) continue;
    const Evaluation verdict = evaluate(profile, machine, request, plan);
    ASSERT_TRUE(verdict.problems.empty()) << "trial " << trial << ": " << verdict.problems[0];
    EXPECT_EQ(plan.iteration_ns, std::llround(verdict.iteration_ns));
    for (size_t k = 0; k < plan.stages.size(); ++k) {
      EXPECT_EQ(plan.stages[k].predicted->peak_bytes, std::llround(verdict.stages[k].peak_bytes));
      EXPECT_EQ(plan.stages[k].predicted->forward_ns, std::llround(verdict.stages[k].forward_ns));
    }
  }
}

TEST(Planner, ReasonNamesTheBlockThatDoesNotFitAlone) {
  // n1 alone: 1000 bytes of parameters, as many of gradients, twice as many of optimizer, and
  // buffers of 2 * 8 for its one row.
  const plan::Plan plan =
      make_plan(chain({{}, {.param_bytes = 1000}}), cluster(1, 2, 2000), batch(2));
  EXPECT_FALSE(plan.feasible);
  EXPECT_EQ(plan.reason,
            "no plan fits: even alone in a stage, node 'n1' needs 3.9 KiB at 1 row, but a device "
            "offers 2.0 KiB (after the safety margin).\n"
            "  Needed: parameters 1000 B, gradients 1000 B, optimizer 2.0 KiB, activations 0 B, "
            "buffers 16 B, workspace 0 B.\n"
            "  Try an optimizer with less state or devices with more memory.");
}

TEST(Planner, ReasonNamesTheFullestStageOfTheClosestArrangement) {
  // Three nodes of 400 bytes each (parameters 100) on two ranks of 600 bytes: some stage has two.
  const testing::Link link{.bytes_per_row = 1, .param_bytes = 100, .saved_per_row = 1};
  const plan::Plan plan = make_plan(chain({link, link, link}), cluster(1, 2, 600), batch(2));
  EXPECT_FALSE(plan.feasible);
  // 200 + 200 + 400, one row saved, and 2 * 1 for the value that enters.
  EXPECT_EQ(
      plan.reason,
      "no plan fits: in the closest one (2 stages, 1f1b, 2 micro-batches), stage 1 with 2 "
      "nodes ('n1' to 'n2') needs 804 B at 1 row, but a device offers 600 B (after the safety "
      "margin).\n"
      "  Needed: parameters 200 B, gradients 200 B, optimizer 400 B, activations 2 B, buffers "
      "2 B, workspace 0 B.\n"
      "  Try more ranks than 2, an optimizer with less state, or devices with more memory.");
}

TEST(Planner, ReasonAdvisesWhatTheRequestForbids) {
  // 1000 saved bytes a row on each of two forced stages: activations are what does not fit.
  Request request = batch(4);
  request.recompute = Recompute::never;
  request.schedules = {plan::Schedule::gpipe};
  request.force.stages = 2;
  request.force.micro_batches = 2;
  const plan::Plan plan = make_plan(chain({{.saved_per_row = 1000}, {.saved_per_row = 1000}}),
                                    cluster(1, 2, 1900), request);
  EXPECT_FALSE(plan.feasible);
  // Two micro-batches of two rows, 1000 bytes each: 4000; buffers 2 * 2 * 8.
  EXPECT_EQ(
      plan.reason,
      "no plan fits: in the closest one (2 stages, gpipe, 2 micro-batches), stage 0 with node "
      "'n0' needs 3.9 KiB at 2 rows, but a device offers 1.9 KiB (after the safety margin).\n"
      "  Needed: parameters 0 B, gradients 0 B, optimizer 0 B, activations 3.9 KiB, buffers 32 "
      "B, workspace 0 B.\n"
      "  Try a smaller batch size, more micro-batches than 2, recompute = \"auto\" instead of "
      "\"never\", the schedule \"1f1b\", leaving the number of stages free, or devices with more "
      "memory.");
}

TEST(Planner, ObeysWhatIsForced) {
  const cost::GraphProfile profile = chain({{}, {}, {}, {}, {}});
  Request request = batch(8);
  request.force.replicas = {1, 3};
  plan::Plan plan = make_plan(profile, cluster(1, 4), request);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].ranks, (std::vector<plan::Rank>{0}));
  EXPECT_EQ(plan.stages[1].ranks, (std::vector<plan::Rank>{1, 2, 3}));

  request = batch(8);
  request.force.stages = 3;
  request.force.micro_batches = 4;
  request.force.schedule = plan::Schedule::gpipe;
  plan = make_plan(profile, cluster(1, 4), request);
  EXPECT_EQ(plan.stages.size(), 3u);
  EXPECT_EQ(plan.micro_batches, 4);
  EXPECT_EQ(plan.schedule, plan::Schedule::gpipe);

  request = batch(8);
  request.recompute = Recompute::always;
  for (const plan::Stage& stage : make_plan(profile, cluster(1, 4), request).stages) {
    EXPECT_TRUE(stage.recompute);
  }
  for (const plan::Stage& stage :
       make_plan(profile, cluster(1, 4), batch(8), {.one_replica = true}).stages) {
    EXPECT_EQ(stage.ranks.size(), 1u);
  }
}

// With many ranks, numbers of replicas that leave the largest share as it is are not searched; no
// plan was found where such a number was forced.
TEST(Planner, ObeysForcedReplicasThatSaveNoTime) {
  Request request = batch(12);
  request.force.micro_batches = 1;
  request.force.replicas = {8, 8};
  const plan::Plan plan = make_plan(chain({{}, {}, {}, {}}), cluster(5, 8), request);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].ranks.size(), 8u);
  EXPECT_EQ(plan.stages[1].ranks.size(), 8u);
}

TEST(Planner, LeavesRanksIdleAtTheEnd) {
  Request request = batch(4);
  request.force.replicas = {1, 1};
  const plan::Plan plan = make_plan(chain({{}, {}}), cluster(1, 4), request);
  EXPECT_EQ(plan.stages[0].ranks, (std::vector<plan::Rank>{0}));
  EXPECT_EQ(plan.stages[1].ranks, (std::vector<plan::Rank>{1}));
}

TEST(Planner, RefusesMoreMicroBatchesThanCanBeSimulatedInAllStages) {
  const cost::GraphProfile profile = chain(std::vector<Link>(40));
  Request request = batch(int64_t{1} << 18);
  request.force.micro_batches = request.global_batch;
  EXPECT_EQ(error_of(profile, cluster(1, 64), request),
            "262144 micro-batches in up to 64 stages are more than can be simulated (at most "
            "131072).\n  Try fewer micro-batches.");
}

TEST(Planner, RefusesAForcedPlanThatCannotBe) {
  const cost::GraphProfile profile = chain({{}, {}, {}});
  const auto forced = [](const Force& force) {
    Request request = batch(6);
    request.force = force;
    return request;
  };
  EXPECT_EQ(error_of(profile, cluster(1, 4), forced({.replicas = {{2, 3}}})),
            "forced replicas [2, 3] need 5 ranks, but there are 4.\n"
            "  Try fewer replicas, or start 5 ranks.");
  EXPECT_EQ(error_of(profile, cluster(1, 4), forced({.stages = 3, .replicas = {{1, 1}}})),
            "3 stages are forced, but replicas [1, 1] are of 2.\n"
            "  Try a list of 3 numbers, or leave out the number of stages.");
  EXPECT_EQ(error_of(profile, cluster(1, 4), forced({.stages = 4})),
            "4 stages are forced, but the model has only 3 blocks that can be cut apart.\n"
            "  Try at most 3 stages.");
  EXPECT_EQ(error_of(profile, cluster(1, 2), forced({.stages = 3})),
            "3 stages are forced, but there are only 2 ranks, and each stage needs its own.\n"
            "  Try at most 2 stages.");
  EXPECT_EQ(error_of(profile, cluster(1, 4), forced({.micro_batches = 8})),
            "8 micro-batches cannot be made of a global batch of 6 rows: each needs a row.\n"
            "  Try at most 6 micro-batches, or a larger batch.");
  EXPECT_EQ(
      error_of(profile, cluster(1, 4), forced({.micro_batches = 4, .replicas = {{1, 2}}})),
      "4 micro-batches on 2 replicas need 8 rows, but the global batch has 6: a replica would "
      "get no row.\n"
      "  Try micro_batches <= 3, replicas <= 1, or a larger batch.");
  EXPECT_EQ(error_of(profile, cluster(1, 4), forced({.replicas = {{1, 2}}}), {.one_replica = true}),
            "forced replicas [1, 2], but rows of this model interact, so a micro-batch cannot be "
            "shared by replicas.\n  Try 1 replica per stage.");
}

TEST(Planner, InterleavesWhenThatIsFaster) {
  // Four equal nodes on two ranks, two micro-batches of one row, transfers of 18 ns. One chunk per
  // group: 1f1b takes (2 + 1) * 600 ns and two transfers; two chunks halve the ramp: (4 + 1) * 300
  // and what their transfers do not hide.
  Request request = batch(2);
  request.micro_batches = {2};
  request.max_interleave = 2;
  request.force.replicas = {{1, 1}};
  const cost::GraphProfile profile = chain({{}, {}, {}, {}});
  const plan::Plan plain = make_plan(profile, cluster(1, 2), request);
  request.schedules.push_back(plan::Schedule::interleaved);
  request.force = {.stages = 4};
  const plan::Plan chunks = make_plan(profile, cluster(1, 2), request);
  ASSERT_TRUE(chunks.feasible) << chunks.reason;
  EXPECT_EQ(chunks.schedule, plan::Schedule::interleaved);
  EXPECT_EQ(chunks.interleave, 2);
  EXPECT_EQ(chunks.stages[0].ranks, chunks.stages[2].ranks);
  EXPECT_LT(chunks.iteration_ns, plain.iteration_ns);
}

TEST(Planner, SaysWhatInterleavingNeeds) {
  // Two ranks are two groups, and three micro-batches no multiple of them.
  Request request = batch(6);
  request.schedules = {plan::Schedule::interleaved};
  request.max_interleave = 2;
  request.micro_batches = {1, 3};
  const plan::Plan plan = make_plan(chain({{}, {}, {}, {}}), cluster(1, 2), request);
  EXPECT_EQ(
      plan.reason,
      "no plan exists: only the schedule 'interleaved' is allowed, which needs groups of "
      "ranks, 2 or more, each with 2 stages, and a multiple of the number of groups as "
      "micro-batches. There are 2 ranks, 4 blocks can be cut apart, and the numbers of "
      "micro-batches are 1, 3.\n"
      "  Try the schedule \"1f1b\", too, or other numbers of micro-batches, stages or ranks.");
}

TEST(Planner, KeepsModulesWholeAndPinned) {
  cost::GraphProfile profile = chain({{}, {}, {}, {}});
  for (uint32_t k = 0; k < 4; ++k)
    profile.nodes[k].name = k < 3 ? fmt::format("body.n{}", k) : "head";
  Request request = batch(2);
  request.force.replicas = {{1, 1}};
  // Free, the cut is in the middle; with the body whole, only the head can be cut off.
  EXPECT_EQ(make_plan(profile, cluster(1, 2), request).stages[0].nodes.size(), 2u);
  EXPECT_EQ(make_plan(profile, cluster(1, 2), request, {.whole = {"body"}}).stages[0].nodes.size(),
            3u);
  EXPECT_EQ(
      make_plan(profile, cluster(1, 2), request, {.pins = {{"body.n1", 1}}}).stages[0].nodes.size(),
      1u);
  EXPECT_EQ(error_of(profile, cluster(1, 2), request, {.whole = {"bodi"}}),
            "the graph has no module 'bodi'.\n  Did you mean 'body'?");
}

TEST(Planner, SaysThatPinsMayBeTheReason) {
  // One group is in one stage, which cannot be the second one.
  cost::GraphProfile profile = chain({{}, {}});
  profile.nodes[0].group = profile.nodes[1].group = "g";
  const plan::Plan plan = make_plan(profile, cluster(1, 2), batch(2), {.pins = {{"n1", 1}}});
  EXPECT_NE(plan.reason.find("without pins, in the closest one (1 stage"), std::string::npos)
      << plan.reason;
  EXPECT_NE(plan.reason.find("Try other pins, "), std::string::npos) << plan.reason;
}

TEST(Planner, PinsToInnerStagesOfAnInterleavedPlan) {
  // Too many nodes to enumerate: the balanced cut puts n20 into stage 1 of 4, n45 into stage 2.
  const cost::GraphProfile profile = chain(std::vector<Link>(60));
  Request request = batch(8);
  request.schedules = {plan::Schedule::interleaved};
  request.max_interleave = 2;
  request.force.stages = 4;
  const plan::Plan plan =
      make_plan(profile, cluster(1, 2), request, {.pins = {{"n20", 2}, {"n58", 2}, {"n59", -1}}});
  ASSERT_TRUE(plan.feasible) << plan.notes;
  EXPECT_EQ(plan.interleave, 2);
  const auto holds = [&](size_t stage, std::string_view node) {
    return std::ranges::count(plan.stages[stage].nodes, node) == 1;
  };
  EXPECT_TRUE(holds(2, "n20") && holds(2, "n58") && holds(3, "n59"));
}

// The search looked at pins only when it had its candidates: of these nodes, the two in the middle
// stages left it none.
TEST(Planner, FindsPinnedStagesOfLongModels) {
  const cost::GraphProfile profile = chain(std::vector<Link>(60));
  const plan::Plan plan =
      make_plan(profile, cluster(2, 4), batch(16), {.pins = {{"n3", 1}, {"n50", 2}, {"n55", 3}}});
  ASSERT_TRUE(plan.feasible) << plan.reason;
  const auto holds = [&](size_t stage, std::string_view node) {
    return std::ranges::count(plan.stages[stage].nodes, node) == 1;
  };
  EXPECT_TRUE(holds(1, "n3") && holds(2, "n50") && holds(3, "n55"));
}

// One stage is the first and the last; pins to both, of nodes that cannot be separated, were an
// error.
TEST(Planner, PinsOneStageAsTheFirstAndTheLast) {
  cost::GraphProfile profile = chain({{}, {}, {}});
  profile.nodes[0].group = profile.nodes[2].group = "g";
  const std::vector<Pin> pins{{"n0", 0}, {"n2", -1}};
  EXPECT_EQ(make_plan(profile, cluster(1, 2), batch(2), {.pins = pins}).stages.size(), 1u);
  Request request = batch(2);
  request.force.stages = 2;
  EXPECT_EQ(
      make_plan(profile, cluster(1, 2), request, {.pins = pins}).reason,
      "no plan exists: nodes that cannot be separated are pinned to stage 0 and to the last, "
      "so there must be 1 stage, but 2 are forced.\n  Try another pin, or leave the number of "
      "stages free.");
}

// By the least that ranges may hold, the fastest cut of this U-net fits with room in other places
// too, where it does not by what they hold; the search then took what was left, over a link of
// 1 kB/s. The cut that fits is found by the most that ranges may hold.
TEST(Planner, FindsTheCutThatFitsWhereTheFastestDoesNot) {
  const cost::GraphProfile profile = cost::graph_profile_from_json(R"({
    "format": "rannc-graph-profile", "version": 2, "name": "u-net", "dtype": "float32", "rows": [1],
    "inputs": [{"name": "x", "bytes_per_row": 14}],
    "params": [{"id": "p0", "bytes": 7171}, {"id": "p1", "bytes": 1944},
               {"id": "p3", "bytes": 6398}, {"id": "p4", "bytes": 3781},
               {"id": "p5", "bytes": 5849}, {"id": "p6", "bytes": 448}],
    "nodes": [
      {"name": "n0", "op": "op", "inputs": ["x"], "params": ["p0"],
       "outputs": [{"bytes_per_row": 638}], "forward_ns": [1438], "backward_ns": [3491],
       "saved_bytes": [4032]},
      {"name": "n1", "op": "op", "inputs": ["n0"], "params": ["p1"],
       "outputs": [{"bytes_per_row": 543, "grad": false}, {"bytes_per_row": 362}],
       "forward_ns": [846], "backward_ns": [1918], "saved_bytes": [1046]},
      {"name": "n2", "op": "op", "inputs": ["n1"], "adds_in_place": true, "group": "g",
       "outputs": [{"bytes_per_row": 1156}, {"bytes_per_row": 551}], "forward_ns": [1927],
       "backward_ns": [3392], "saved_bytes": [947]},
      {"name": "n3", "op": "op", "inputs": ["n2:1"], "params": ["p3"], "adds_in_place": true,
       "group": "g", "outputs": [{"bytes_per_row": 613}], "forward_ns": [2006],
       "backward_ns": [3765], "saved_bytes": [274]},
      {"name": "n4", "op": "op", "inputs": ["n3", "n2:1"], "params": ["p4"], "adds_in_place": true,
       "outputs": [{"bytes_per_row": 594}], "forward_ns": [543], "backward_ns": [834],
       "saved_bytes": [492]},
      {"name": "n5", "op": "op", "inputs": ["n4", "n1"], "params": ["p5"], "adds_in_place": true,
       "outputs": [{"bytes_per_row": 217}], "forward_ns": [1152], "backward_ns": [1906],
       "saved_bytes": [2974]},
      {"name": "n6", "op": "op", "inputs": ["n5", "n0"], "params": ["p6"], "adds_in_place": true,
       "outputs": [{"bytes_per_row": 356}], "forward_ns": [914], "backward_ns": [2114],
       "saved_bytes": [957]}],
    "saved": [{"nodes": ["n4", "n5"], "bytes": [217]}, {"nodes": ["n0", "n1"], "bytes": [173]},
              {"nodes": ["n4", "n5"], "bytes": [1889]},
              {"nodes": ["n0", "n1"], "bytes": [2349]}]})");
  cost::Cluster machine = cluster(2, 2, 84789);
  machine.inter_host = {1e3, 1e9};
  Request request = batch(1);
  request.gradient_bytes_per_param_byte = 2;
  request.optimizer_bytes_per_param_byte = 2;
  const plan::Plan plan = make_plan(profile, machine, request, {.exactly = false});
  ASSERT_TRUE(plan.feasible) << plan.reason;
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].nodes.size(), 4u);
  EXPECT_LT(plan.iteration_ns, 1'000'000);  // within a host
}

TEST(Planner, EndsEarlyWhenToldSo) {
  const std::atomic<bool> stop = true;
  const plan::Plan plan = make_plan(chain({{}, {}, {}}), cluster(1, 2), batch(4), {.stop = &stop});
  ASSERT_TRUE(plan.feasible);
  EXPECT_NE(plan.notes.find("\"search\":\"cut\""), std::string::npos) << plan.notes;
}

TEST(Planner, SaysTheSameOnSeveralThreads) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 10; ++trial) {
    const cost::GraphProfile profile = testing::random_profile(random, 20);
    Request request = batch(16);
    request.schedules.push_back(plan::Schedule::interleaved);
    request.max_interleave = 2;
    const cost::Cluster machine = cluster(2, 4, 4000 + 500 * trial);
    EXPECT_EQ(plan::to_json(make_plan(profile, machine, request, {.threads = 1})),
              plan::to_json(make_plan(profile, machine, request, {.threads = 3})));
  }
}

TEST(Planner, ComparesItsPlanWithNoneOfTheSameKind) {
  std::mt19937 random(13);
  for (int trial = 0; trial < 5; ++trial) {
    // Borders are refined by piece behind the search, which makes another draft the best at times.
    const cost::GraphProfile profile = testing::random_profile(random, 24);
    for (const int max_blocks : {6, 10}) {
      const plan::Plan plan =
          make_plan(profile, cluster(1, 4), batch(8), {.max_blocks = max_blocks});
      const std::string own = fmt::format("\"kind\":\"{} stages\"", plan.stages.size());
      EXPECT_EQ(plan.notes.find(own), std::string::npos) << plan.notes;
    }
  }
}

TEST(Planner, TellsHowFarItIsOnTheCallersThreadAndPlansAsWithoutAListener) {
  std::mt19937 random(12);
  const cost::GraphProfile profile = testing::random_profile(random, 20);
  Request request = batch(16);
  request.schedules.push_back(plan::Schedule::interleaved);
  request.max_interleave = 2;
  const std::string quiet = plan::to_json(make_plan(profile, cluster(2, 4), request));
  for (const int threads : {1, 3}) {
    std::vector<double> heard;
    const std::thread::id here = std::this_thread::get_id();
    const auto listener = [&](double share) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      heard.push_back(share);
    };
    const plan::Plan plan =
        make_plan(profile, cluster(2, 4), request, {.threads = threads, .progress = listener});
    EXPECT_EQ(plan::to_json(plan), quiet);
    ASSERT_GT(heard.size(), 10u);
    EXPECT_TRUE(std::ranges::is_sorted(heard));
    EXPECT_GT(heard.front(), 0);
    EXPECT_LE(heard.back(), 1);
    EXPECT_GT(heard.back(), 0.9);
  }
}

TEST(Planner, ExaminesAllOrdersOfHosts) {
  // Four replicas take 3 ns a row, two take 6 ns for theirs: 9 ns. On hosts 0, 1, 1, 2 and 0, 2 the
  // first and the last share stay inside their hosts, and each device of host 1 sends 1000 bytes
  // over a link of its own: 1000 ns each way. On 0, 0, 1, 2 and 1, 2, which the search once took
  // for the same because the three hosts were alike, one device receives 2000 bytes: 4009 ns.
  cost::Cluster machine = cluster(3, 2);
  machine.intra_host = {1e12, 0};
  machine.inter_host = {1e9, 0};
  machine.links_per_host = 2;
  Request request = batch(4);
  request.micro_batches = {1};
  request.force.replicas = {4, 2};
  const plan::Plan plan =
      make_plan(chain({{.time_ns = 1, .bytes_per_row = 1000}, {.time_ns = 1}}), machine, request);
  ASSERT_TRUE(plan.feasible) << plan.reason;
  EXPECT_EQ(plan.iteration_ns, 2009);
}

TEST(Planner, CallsNoPlanTheBestWhereRanksOutOfOrderMayBeBetter) {
  // Only ascending ranks are examined, which is no loss unless links inside a host are slower.
  const std::vector<Link> links = {{.time_ns = 1, .bytes_per_row = 1000}, {.time_ns = 1}};
  Request request = batch(4);
  request.force.replicas = {2, 2};
  const auto found = [&](double bandwidth_inside) {
    cost::Cluster machine = cluster(2, 2);
    machine.intra_host = {bandwidth_inside, 0};
    machine.inter_host = {1e9, 0};
    const plan::Plan plan = make_plan(chain(links), machine, request);
    const size_t at = plan.notes.find("\"bound_ns\":");
    return std::pair(static_cast<double>(plan.iteration_ns), std::stod(plan.notes.substr(at + 11)));
  };
  const auto [best, its_bound] = found(1e9);
  EXPECT_EQ(its_bound, best);
  const auto [slower, bound] = found(1e8);
  EXPECT_LT(bound, slower);
}

TEST(Planner, PlansForAMillionReductionBucketsAsQuickly) {
  // Each simulated plan once walked through all buckets: half a minute instead of 0.1 s.
  Request request = batch(256);
  request.reduction_buckets = 1 << 20;
  const std::vector<Link> links(10, {.param_bytes = 1000});
  const plan::Plan plan =
      make_plan(chain(links), cluster(4, 8), request, {.time_limit_s = 5, .threads = 1});
  ASSERT_TRUE(plan.feasible) << plan.reason;
  EXPECT_NE(plan.notes.find("\"search\":\"complete\""), std::string::npos) << plan.notes;
}

TEST(Planner, BoundIsBelowItsPlan) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 20; ++trial) {
    const cost::GraphProfile profile = testing::random_profile(random, 24);
    const plan::Plan plan = make_plan(profile, cluster(2, 4), batch(16));
    ASSERT_TRUE(plan.feasible);
    const size_t at = plan.notes.find("\"bound_ns\":");
    ASSERT_NE(at, std::string::npos);
    const double bound = std::stod(plan.notes.substr(at + 11));
    EXPECT_GT(bound, 0);
    EXPECT_LE(bound, static_cast<double>(plan.iteration_ns));
  }
}

}  // namespace
}  // namespace rannc::partition
