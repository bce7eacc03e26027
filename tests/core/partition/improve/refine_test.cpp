#include "partition/improve/refine.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/contract.h"
#include "partition/dice.h"
#include "partition/problems.h"

namespace rannc::partition {
namespace {

using testing::cluster;
using testing::Dice;

/// One block: what it reads, its forward's time (backward takes twice as long) and bytes per row.
struct Node {
  std::vector<uint32_t> reads;
  double time_ns = 100;
  double bytes = 1;
};

/// `stage_of`, on groups of one rank each, or of `replicas`, in the order of the stages, 1f1b with
/// 8 micro-batches of one row each; refined with the number of micro-batches and of stages, and the
/// replicas, fixed.
Draft refined(const std::vector<Node>& nodes, const cost::Cluster& machine,
              std::vector<int> stage_of, std::vector<int> replicas = {}) {
  cost::GraphProfile profile =
      testing::chain(std::vector<testing::Link>(nodes.size(), testing::Link{}));
  for (size_t k = 0; k < nodes.size(); ++k) {
    cost::ProfileNode& node = profile.nodes[k];
    node.inputs.clear();
    for (const uint32_t from : nodes[k].reads) node.inputs.push_back({false, from, 0});
    if (node.inputs.empty()) node.inputs = {{true, 0, 0}};
    node.forward_ns = {nodes[k].time_ns};
    node.backward_ns = {2 * nodes[k].time_ns};
    node.outputs = {{.size = {nodes[k].bytes, 0}, .grad = true}};
  }
  Request request;
  request.global_batch = 8 * (replicas.empty() ? 1 : std::ranges::max(replicas));
  request.micro_batches = {8};
  request.schedules = {plan::Schedule::one_f_one_b};
  const auto parts = single_blocks(nodes.size());
  const BlockCosts costs(profile, parts);
  const BlockModel model(contract(profile, parts, {}), request, costs);
  Assessor assessor(model, machine, request);
  Scored start;
  start.draft.schedule = plan::Schedule::one_f_one_b;
  start.draft.micro_batches = 8;
  start.draft.stage_of = std::move(stage_of);
  SearchSpace space = search_space(request, machine, {});
  space.stages = 1 + *std::ranges::max_element(start.draft.stage_of);
  space.replicas = replicas;
  replicas.resize(static_cast<size_t>(space.stages), 1);
  int rank = 0;
  for (const int count : replicas) {
    start.draft.groups.push_back({{rank, count}});
    rank += count;
  }
  assessor.choose_recompute(start.draft);
  start.figures = assessor.assess(start.draft);
  Stop stop(0, nullptr);
  Best best(1);
  return refine(assessor, space, start, {}, stop, best).draft;
}

TEST(Refine, MovesAWholeBranchToAStageThatIsNotNextToIt) {
  // n0 -> n1 -> n2 -> n5 and n0 -> n3 -> n4 -> n5; what n1 and n3 give is too large to be sent. The
  // stages take 100, 400 and 600; with the second branch beside n0, 400, 400 and 300. On the way
  // between, beside n1, it would make a stage of 700.
  const std::vector<Node> nodes{{{}, 100},       {{0}, 200, 1e4}, {{1}, 200},
                                {{0}, 150, 1e4}, {{3}, 150},      {{2, 4}, 300}};
  const Draft draft = refined(nodes, cluster(1, 3), {0, 1, 1, 2, 2, 2});
  EXPECT_EQ(draft.stage_of, (std::vector<int>{0, 1, 1, 0, 0, 2}));
}

TEST(Refine, PutsTheStagesOfABranchOnOneHost) {
  // Two towers n0 -> n2 and n1 -> n3 with large values inside, and a small one to the end of the
  // second. In the order of the stages each tower would lie on both hosts.
  const std::vector<Node> nodes{{{}, 1000, 500}, {{}, 1000, 500}, {{0}, 1000}, {{1, 2}, 1000}};
  const cost::Cluster machine = cluster(2, 2);
  const Draft draft = refined(nodes, machine, {0, 1, 2, 3});
  std::vector<int> host;
  for (const int stage : draft.stage_of) {
    host.push_back(machine.host_of(draft.ranks(stage).front().first));
  }
  EXPECT_EQ(host[0], host[2]);
  EXPECT_EQ(host[1], host[3]);
  EXPECT_NE(host[0], host[1]);
}

TEST(Refine, KeepsForcedReplicasWithTheirStages) {
  // Two towers whose stages may come in either order.
  Dice dice(1);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<Node> nodes{{{}}, {{}}, {{0}}, {{1, 2}}};
    for (Node& node : nodes) {
      node.time_ns = dice.real(100, 1000);
      node.bytes = dice.magnitude(1, 1e4);
    }
    const Draft draft = refined(nodes, cluster(2, 2), {0, 1, 2, 2}, {2, 1, 1});
    std::vector<int> replicas;
    for (const Ranks& ranks : draft.groups) replicas.push_back(size(ranks));
    EXPECT_EQ(replicas, (std::vector<int>{2, 1, 1})) << "trial " << trial;
  }
}

}  // namespace
}  // namespace rannc::partition
