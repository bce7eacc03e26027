#include "partition/zoom.h"

#include <algorithm>
#include <utility>

#include "partition/contract.h"
#include "partition/refine.h"

namespace rannc::partition {
namespace {

/// Pieces on each side of a border that are kept apart.
constexpr size_t kReach = 16;
constexpr int kMostRounds = 4;
constexpr int64_t kTrialWork = 6'000'000;

/// Blocks for refining the borders of a plan, with the stage of each.
struct CloseUp {
  std::vector<std::vector<uint32_t>> blocks;
  std::vector<int> stage_of;
};

CloseUp close_up(const std::vector<Piece>& pieces, const NodePlan& plan, size_t nodes) {
  std::vector<int> stage_of_node(nodes, 0);
  for (size_t s = 0; s < plan.nodes.size(); ++s) {
    for (const uint32_t node : plan.nodes[s]) stage_of_node[node] = static_cast<int>(s);
  }
  std::vector<std::vector<const Piece*>> members(plan.nodes.size());
  for (const Piece& piece : pieces) {
    members[static_cast<size_t>(stage_of_node[piece.front()])].push_back(&piece);
  }
  CloseUp result;
  for (size_t s = 0; s < members.size(); ++s) {
    const size_t count = members[s].size();
    bool inner_open = false;
    for (size_t k = 0; k < count; ++k) {
      const bool inner = k >= kReach && k + kReach < count;
      if (!inner || !inner_open) {
        result.blocks.emplace_back();
        result.stage_of.push_back(static_cast<int>(s));
      }
      inner_open = inner;
      const Piece& piece = *members[s][k];
      result.blocks.back().insert(result.blocks.back().end(), piece.begin(), piece.end());
    }
  }
  return result;
}

/// Pins by block, from the stage that pinned nodes are in now.
SearchSpace with_pins(SearchSpace space, const CloseUp& view, const std::vector<int>& pin_of_node) {
  space.pins.clear();
  if (pin_of_node.empty()) return space;
  for (const std::vector<uint32_t>& block : view.blocks) {
    int pin = SearchSpace::kFree;
    for (const uint32_t node : block) {
      if (pin_of_node[node] != SearchSpace::kFree) pin = pin_of_node[node];
    }
    space.pins.push_back(pin);
  }
  return space;
}

}  // namespace

NodePlan to_node_plan(const Scored& scored, const std::vector<std::vector<uint32_t>>& blocks) {
  NodePlan plan{scored, {}};
  plan.nodes.resize(static_cast<size_t>(scored.draft.stages()));
  for (size_t block = 0; block < blocks.size(); ++block) {
    std::vector<uint32_t>& nodes = plan.nodes[static_cast<size_t>(scored.draft.stage_of[block])];
    nodes.insert(nodes.end(), blocks[block].begin(), blocks[block].end());
  }
  for (std::vector<uint32_t>& nodes : plan.nodes) std::ranges::sort(nodes);
  return plan;
}

NodePlan zoom(const cost::GraphProfile& profile, const cost::Cluster& cluster,
              const Request& request, const SearchSpace& space, const std::vector<Piece>& pieces,
              NodePlan plan, Stop& stop, int64_t& examined) {
  for (int round = 0; round < kMostRounds && !stop.now(); ++round) {
    CloseUp view = close_up(pieces, plan, profile.nodes.size());
    const cost::GraphProfile blocks = contract(profile, view.blocks, {});
    const BlockCosts costs(profile, view.blocks);
    const BlockModel model(blocks, request, costs);
    Assessor assessor(model, cluster, request, space.room);
    Scored start = plan.scored;
    start.draft.stage_of = view.stage_of;
    start.figures = assessor.assess(start.draft);
    const int64_t work = static_cast<int64_t>(view.blocks.size()) +
                         4 * start.draft.stages() * start.draft.micro_batches;
    const int64_t trials = std::clamp<int64_t>(kTrialWork / work, 20, 600);
    Best best(1);
    const Scored refined = refine(assessor, with_pins(space, view, space.pin_of_node), start,
                                  {.borders_only = true, .most_trials = trials}, stop, best);
    examined += assessor.examined();
    if (refined.figures.iteration_ns >= start.figures.iteration_ns) break;
    plan = to_node_plan(refined, view.blocks);
  }
  return plan;
}

}  // namespace rannc::partition
