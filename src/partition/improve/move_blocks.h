#pragma once

#include <cstdint>

#include "partition/blocks/block_model.h"
#include "partition/problem/draft.h"

namespace rannc::partition {

/// Whether stage `to`, a neighbour of the block's own, may have it.
[[nodiscard]] bool can_move(const BlockModel& model, const Draft& draft, uint32_t block, int to);

/// Moves `count` blocks from stage `from` to its neighbour `to`, nearest to the border first;
/// false when there are not so many, or none would be left.
[[nodiscard]] bool shift(const BlockModel& model, Draft& draft, int from, int to, int count);

}  // namespace rannc::partition
