#include "partition/improve/border_pieces.h"

#include <utility>

namespace rannc::partition {
namespace {

/// Pieces on each side of a border that are kept apart.
/// tuned by: with 8 and 32, plans of `ablations large --problems 300 --inexact` stay as they are.
/// without it: with fewer, a border gets stuck more often; with more, each round takes longer.
constexpr size_t kZoomReach = 16;

}  // namespace

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
      const bool inner = k >= kZoomReach && k + kZoomReach < count;
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

}  // namespace rannc::partition
