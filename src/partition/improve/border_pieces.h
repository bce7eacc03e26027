#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "partition/blocks/pieces.h"
#include "partition/problem/search_space.h"
#include "partition/score/node_plan.h"

namespace rannc::partition {

/// Blocks for refining the borders of a plan, with the stage of each.
struct CloseUp {
  std::vector<std::vector<uint32_t>> blocks;
  std::vector<int> stage_of;
};

/// The pieces near a border are kept apart; the rest of a stage is one block.
[[nodiscard]] CloseUp close_up(const std::vector<Piece>& pieces, const NodePlan& plan,
                               size_t nodes);

/// Pins by block, from the stage that pinned nodes are in now.
[[nodiscard]] SearchSpace with_pins(SearchSpace space, const CloseUp& view,
                                    const std::vector<int>& pin_of_node);

}  // namespace rannc::partition
