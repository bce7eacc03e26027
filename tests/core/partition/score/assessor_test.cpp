#include "partition/score/assessor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "partition/blocks/contract.h"
#include "partition/problems.h"
#include "rannc/partition/evaluate.h"

namespace rannc::partition {
namespace {

int draw(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

/// A draft that is valid but for memory: ranges of nodes on random ranks, some of them idle.
Draft random_draft(std::mt19937& random, int nodes, const cost::Cluster& machine, int64_t batch) {
  Draft draft;
  const int groups = draw(random, 1, std::min(nodes, machine.ranks()));
  if (groups >= 2 && nodes >= 2 * groups && draw(random, 0, 1) == 0) {
    draft.schedule = plan::Schedule::interleaved;
    draft.interleave = draw(random, 2, nodes / groups);
    draft.micro_batches = groups * draw(random, 1, 2);
  } else {
    draft.schedule = static_cast<plan::Schedule>(draw(random, 0, 1));
    draft.micro_batches = draw(random, 1, 6);
  }
  std::vector<int> ranks(static_cast<size_t>(machine.ranks()));
  for (size_t k = 0; k < ranks.size(); ++k) ranks[k] = static_cast<int>(k);
  std::shuffle(ranks.begin(), ranks.end(), random);
  draft.groups.resize(static_cast<size_t>(groups));
  for (size_t k = 0; k < ranks.size(); ++k) {
    const auto group = k < draft.groups.size() ? k : size_t(draw(random, 0, 2 * groups));
    if (group >= draft.groups.size()) continue;
    Ranks& members = draft.groups[group];
    if (draft.micro_batches * (size(members) + 1) <= batch) members.push_back({ranks[k], 1});
  }
  const int stages = draft.stages();
  for (int node = 0; node < nodes; ++node) {
    draft.stage_of.push_back(node < stages ? node : draw(random, 0, stages - 1));
  }
  std::ranges::sort(draft.stage_of);
  for (int s = 0; s < stages; ++s) draft.recompute.push_back(draw(random, 0, 1) == 1);
  return draft;
}

plan::Plan to_plan(const cost::GraphProfile& profile, const Draft& draft) {
  plan::Plan plan;
  plan.schedule = draft.schedule;
  plan.interleave = draft.interleave;
  plan.micro_batches = draft.micro_batches;
  plan.stages.resize(static_cast<size_t>(draft.stages()));
  for (size_t node = 0; node < draft.stage_of.size(); ++node) {
    plan.stages[static_cast<size_t>(draft.stage_of[node])].nodes.push_back(
        profile.nodes[node].name);
  }
  for (int s = 0; s < draft.stages(); ++s) {
    plan::Stage& stage = plan.stages[static_cast<size_t>(s)];
    for (const Segment& segment : draft.ranks(s)) stage.ranks.push_back(segment.first);
    stage.recompute = draft.recompute[static_cast<size_t>(s)];
  }
  return plan;
}

/// Memory that nodes save together, and masters and shares of the optimizer's state.
void as_version_2(std::mt19937& random, cost::GraphProfile& profile, Request& request) {
  profile.version = 2;
  const auto nodes = static_cast<int>(profile.nodes.size());
  for (cost::ProfileNode& node : profile.nodes) node.adds_in_place = draw(random, 0, 1) == 0;
  for (int count = draw(random, 0, 2 * nodes); count > 0; --count) {
    cost::SavedStorage storage;
    for (int k = 0; k < nodes; ++k) {
      if (draw(random, 0, 2) == 0) storage.nodes.push_back(static_cast<uint32_t>(k));
    }
    for (size_t k = 0; k < profile.rows.size(); ++k) {
      storage.bytes.push_back(draw(random, 0, 900) * static_cast<double>(profile.rows[k]));
    }
    if (!storage.nodes.empty()) profile.saved.push_back(std::move(storage));
  }
  if (draw(random, 0, 2) == 0) {
    for (cost::ProfileNode& node : profile.nodes) {
      if (draw(random, 0, 3) > 0) node.forward_host_ns.assign(profile.rows.size(), 0);
      if (draw(random, 0, 3) > 0) node.backward_host_ns.assign(profile.rows.size(), 0);
      for (double& ns : node.forward_host_ns) ns = draw(random, 0, 300);
      for (double& ns : node.backward_host_ns) ns = draw(random, 0, 600);
    }
  }
  request.master_bytes_per_param_byte = draw(random, 0, 1);
  request.shard_optimizer = draw(random, 0, 1) == 1;
}

class BothVersions : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Assessor, BothVersions, ::testing::Values(1, 2));

TEST_P(BothVersions, AgreeWithTheIndependentEvaluation) {
  std::mt19937 random(3);
  int interleaved = 0, across_hosts = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int nodes = draw(random, 1, 10);
    cost::GraphProfile profile = testing::random_profile(random, nodes);
    cost::Cluster machine = testing::cluster(draw(random, 1, 3), draw(random, 1, 3));
    machine.links_per_host = draw(random, 1, 2);
    Request request;
    request.global_batch = draw(random, 12, 40);
    request.schedules = {plan::Schedule::gpipe, plan::Schedule::one_f_one_b,
                         plan::Schedule::interleaved};
    request.max_interleave = 10;
    request.micro_batches = {1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18};
    request.reduction_buckets = draw(random, 1, 3);
    if (GetParam() > 1) as_version_2(random, profile, request);
    const Draft draft = random_draft(random, nodes, machine, request.global_batch);

    // Blocks of several nodes each, side by side or not, that lie on one stage.
    std::vector<std::vector<uint32_t>> blocks;
    Draft of_blocks = draft;
    of_blocks.stage_of.clear();
    for (int stage = 0; stage < draft.stages(); ++stage) {
      const size_t begin = blocks.size();
      const int count = draw(random, 1, 3);
      for (uint32_t node = 0; node < profile.nodes.size(); ++node) {
        if (draft.stage_of[node] != stage) continue;
        const bool is_new = blocks.size() == begin || draw(random, 1, count) == 1;
        if (is_new) blocks.emplace_back();
        blocks.back().push_back(node);
        if (is_new) of_blocks.stage_of.push_back(stage);
      }
    }
    const BlockCosts costs(profile, blocks);
    const BlockModel model(contract(profile, blocks, {}), request, costs);
    Assessor assessor(model, machine, request);
    const Assessment mine = assessor.assess(of_blocks);
    const Evaluation truth = evaluate(profile, machine, request, to_plan(profile, draft));
    ASSERT_TRUE(truth.problems.empty()) << "trial " << trial << ": " << truth.problems.front();
    double peak = 0;
    for (const StageEvaluation& stage : truth.stages) peak = std::max(peak, stage.peak_bytes);
    ASSERT_NEAR(mine.iteration_ns, truth.iteration_ns, 1e-9 * truth.iteration_ns) << trial;
    ASSERT_NEAR(mine.peak_bytes, peak, 1e-9 * peak) << trial;
    // The four parts of the time add up to it.
    ASSERT_NEAR(assessor.parts(of_blocks).iteration_ns(), truth.iteration_ns,
                1e-9 * truth.iteration_ns);
    interleaved += draft.interleave > 1;
    across_hosts += machine.hosts > 1;
  }
  EXPECT_GT(interleaved, 300);
  EXPECT_GT(across_hosts, 1000);
}

TEST(PipelineBound, IsNeverAboveTheSimulation) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 2000; ++trial) {
    Pipeline pipeline;
    pipeline.schedule = static_cast<plan::Schedule>(trial % 2);
    pipeline.groups = draw(random, 1, 6);
    pipeline.micro_batches = draw(random, 1, 8);
    for (int s = 0; s < pipeline.groups; ++s) {
      pipeline.forward_ns.push_back(draw(random, 0, 50));
      pipeline.backward_ns.push_back(draw(random, 0, 50));
      for (int to = s + 1; to < pipeline.groups; ++to) {
        if (draw(random, 0, 2) == 0) continue;
        pipeline.transfers.push_back({s, to, double(draw(random, 0, 30)),
                                      double(draw(random, 0, 30)), draw(random, 0, 3) > 0});
      }
    }
    const std::vector<double> last = last_backwards(pipeline);
    ASSERT_LE(pipeline_bound_ns(pipeline), *std::ranges::max_element(last) + 1e-9) << trial;
  }
}

}  // namespace
}  // namespace rannc::partition
