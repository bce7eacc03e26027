#include "rannc/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan/lower/placement.h"
#include "rannc/ir/cut.h"
#include "rannc/plan/groups.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

void check_ranks(const Plan& plan, int world) {
  std::map<Rank, int> first_stage_on;
  for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
    const std::vector<Rank>& ranks = plan.stages[stage].ranks;
    if (ranks.empty()) throw PlanError(fmt::format("stage {} has no ranks", stage));
    if (std::set<Rank>(ranks.begin(), ranks.end()).size() != ranks.size()) {
      throw PlanError(fmt::format("stage {} names a rank twice", stage));
    }
    for (Rank rank : ranks) {
      if (rank < 0 || rank >= world) {
        throw PlanError(fmt::format("stage {} runs on rank {}, but the job has ranks 0 to {}",
                                    stage, rank, world - 1));
      }
      const auto [first, is_new] = first_stage_on.emplace(rank, stage);
      if (is_new) continue;
      if (plan.schedule != Schedule::interleaved) {
        throw PlanError(
            fmt::format("rank {} is in stages {} and {}; only schedule 'interleaved' "
                        "shares ranks between stages",
                        rank, first->second, stage));
      }
      if (plan.stages[first->second].ranks != ranks) {
        throw PlanError(fmt::format("stages {} and {} share rank {}, but not all their ranks",
                                    first->second, stage, rank));
      }
    }
  }
}

/// Section 5 of docs/planner-files.md: v stages per group, p groups, whole rounds of p
/// micro-batches.
void check_interleave(const Plan& plan) {
  const int stages = static_cast<int>(plan.stages.size());
  if (plan.schedule != Schedule::interleaved) {
    if (plan.interleave == 1) return;
    throw PlanError(
        fmt::format("interleave is {}, but schedule '{}' has one stage per group of ranks",
                    plan.interleave, name(plan.schedule)));
  }
  if (plan.interleave < 2 || stages % plan.interleave != 0 || stages / plan.interleave < 2) {
    throw PlanError(
        fmt::format("schedule 'interleaved' needs interleave >= 2 and a multiple of it, at "
                    "least two times, as stages; interleave is {} with {} stages",
                    plan.interleave, stages));
  }
  const int groups = stages / plan.interleave;
  if (plan.micro_batches % groups != 0) {
    throw PlanError(
        fmt::format("schedule 'interleaved' over {} groups of ranks needs a multiple of {} "
                    "micro-batches, not {}",
                    groups, groups, plan.micro_batches));
  }
  for (int stage = 0; stage < stages; ++stage) {
    const int first = stage % groups;
    if (plan.stages[stage].ranks == plan.stages[first].ranks) continue;
    throw PlanError(fmt::format("with interleave {}, stage {} must have the ranks of stage {}",
                                plan.interleave, stage, first));
  }
  std::set<Rank> used;
  for (int stage = 0; stage < groups; ++stage) {
    for (Rank rank : plan.stages[stage].ranks) {
      if (used.insert(rank).second) continue;
      throw PlanError(fmt::format(
          "rank {} is in two groups of an interleaved plan; stage {} is one", rank, stage));
    }
  }
}

void check_flow(const ir::Graph& graph, const Placement& placement) {
  // The latest stage whose results reach a node that is cloned: its user cannot be earlier.
  std::vector<int> latest(graph.nodes.size(), Placement::kCloned);
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const int stage = placement.stage_of[index];
    latest[index] = stage;
    for (ir::ValueId operand : graph.operands({index})) {
      const ir::NodeId producer = graph[operand].producer;
      if (!producer.valid()) continue;
      if (stage == Placement::kCloned) {
        latest[index] = std::max(latest[index], latest[producer.index]);
      } else if (latest[producer.index] > stage) {
        throw PlanError(fmt::format(
            "value '{}' flows backwards: node '{}' is in stage {}, but uses a result of stage {}",
            graph[operand].name, graph.nodes[index].name, stage, latest[producer.index]));
      }
    }
  }
}

void check_inseparable(const ir::Graph& graph, const Placement& placement) {
  for (const std::vector<ir::NodeId>& set : ir::inseparable_nodes(graph)) {
    const int stage = placement.stage_of[set.front().index];
    for (ir::NodeId node : set) {
      if (placement.stage_of[node.index] == stage) continue;
      throw PlanError(fmt::format(
          "nodes '{}' (stage {}) and '{}' (stage {}) use a storage that one "
          "of them or a third writes, so they must share a stage",
          graph[set.front()].name, stage, graph[node].name, placement.stage_of[node.index]));
    }
  }
}

/// Segments of a stage, node by node in the order of the graph.
void check_segments(const Stage& stage, int number, const ir::Graph& graph,
                    const Placement& placement) {
  if (stage.segments.empty()) return;
  std::map<std::string_view, int> segment_of;
  for (size_t segment = 0; segment < stage.segments.size(); ++segment) {
    for (const std::string& node : stage.segments[segment]) {
      if (segment_of.emplace(node, segment).second) continue;
      throw PlanError(fmt::format("node '{}' is in two segments of stage {}", node, number));
    }
  }
  std::vector<size_t> found(stage.segments.size());
  std::map<uint32_t, int> segment_of_node;
  int before = -1;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (placement.stage_of[index] != number) continue;
    const auto place = segment_of.find(graph.nodes[index].name);
    const int segment = place == segment_of.end() ? -1 : place->second;
    segment_of_node[index] = segment;
    if (segment >= 0 && segment != before && found[static_cast<size_t>(segment)] > 0) {
      throw PlanError(
          fmt::format("node '{}' does not follow the other nodes of its segment in stage {}",
                      graph.nodes[index].name, number));
    }
    if (segment >= 0) ++found[static_cast<size_t>(segment)];
    before = segment;
  }
  for (size_t segment = 0; segment < found.size(); ++segment) {
    if (found[segment] == stage.segments[segment].size() && found[segment] > 0) continue;
    throw PlanError(
        fmt::format("segment {} of stage {} has nodes that are not of the stage", segment, number));
  }
  for (const std::vector<ir::NodeId>& set : ir::inseparable_nodes(graph)) {
    if (placement.stage_of[set.front().index] != number) continue;
    for (ir::NodeId node : set) {
      if (segment_of_node[node.index] == segment_of_node[set.front().index]) continue;
      throw PlanError(fmt::format(
          "nodes '{}' and '{}' of stage {} use a storage that one of them or a third writes, so "
          "they must share a segment",
          graph[set.front()].name, graph[node].name, number));
    }
  }
}

void check_whole_batch(const Plan& plan, const ir::Graph& graph) {
  if (plan.micro_batches == 1) return;
  const auto found = std::ranges::find_if(graph.nodes, &ir::Node::whole_batch);
  if (found == graph.nodes.end()) return;
  throw PlanError(fmt::format(
      "the plan has {} micro-batches, but with sync_batch_norm the statistics of module '{}' are "
      "those of the whole batch, which must then be one micro-batch.\n  Plan anew with "
      "sync_batch_norm, by a first call in training mode, or leave sync_batch_norm off.",
      plan.micro_batches, found->module));
}

}  // namespace

void verify(const Plan& plan, const ir::Graph& graph, int world) {
  if (!plan.feasible) throw PlanError("the plan is not feasible: " + plan.reason);
  if (plan.stages.empty()) throw PlanError("the plan has no stages");
  if (plan.micro_batches < 1) {
    throw PlanError(fmt::format("the plan has {} micro-batches", plan.micro_batches));
  }
  if (const int size = places(plan); size > 1) {
    if (world % size != 0) {
      throw PlanError(fmt::format("a mesh of {} places does not divide {} ranks", size, world));
    }
    return verify(plane_of(plan), graph, world / size);
  }
  check_ranks(plan, world);
  check_interleave(plan);
  const Placement placement = place(plan, graph);
  check_flow(graph, placement);
  check_inseparable(graph, placement);
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    check_segments(plan.stages[stage], static_cast<int>(stage), graph, placement);
  }
  check_whole_batch(plan, graph);
}

}  // namespace rannc::plan
