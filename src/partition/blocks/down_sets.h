#pragma once

#include <bitset>
#include <cstddef>
#include <vector>

#include "partition/blocks/block_model.h"

namespace rannc::partition {

/// Blocks of a set: as many as the finest search has by default, as bits in two words.
/// tuned by: a bound: kBlocks of the planner, by which no set is larger unless a user asks for
/// more. without it: a model with more blocks is not searched between all its down-sets; larger
/// sets take longer to compare.
inline constexpr size_t kMostSetBlocks = 128;
using BlockSet = std::bitset<kMostSetBlocks>;

/// All sets of blocks that hold whatever their members read, from the empty one to that of all
/// blocks, smaller ones first. A stage is what one has and another, inside it, has not. Empty when
/// there are more than `most`, or more than `kMostSetBlocks` blocks.
[[nodiscard]] std::vector<BlockSet> down_sets(const BlockModel& model, size_t most);

}  // namespace rannc::partition
