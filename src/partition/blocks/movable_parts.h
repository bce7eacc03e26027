#pragma once

#include <cstdint>
#include <vector>

#include "partition/blocks/block_model.h"

namespace rannc::partition {

// Where the blocks and the stages of a draft could go without a value going to an earlier stage.
// `stage_of` is that of the draft, [block].

/// Stages `first` to `last`; none when `first` is the larger.
struct MoveRange {
  int first = 0;
  int last = -1;
};

/// Whether some blocks that are neighbours by number do not depend on each other.
[[nodiscard]] bool branches(const BlockModel& model);

/// A block with all that depends on it in its stage (`later`), or with all that it depends on
/// there.
[[nodiscard]] std::vector<uint32_t> part_of(const BlockModel& model,
                                            const std::vector<int>& stage_of, uint32_t block,
                                            bool later);

/// The later, or the earlier, stages that such a part could move to.
[[nodiscard]] MoveRange range_of_part(const BlockModel& model, const std::vector<int>& stage_of,
                                      const std::vector<uint32_t>& part, bool later);

/// The numbers that a stage could have in the order of stages.
[[nodiscard]] MoveRange range_of_stage(const BlockModel& model, const std::vector<int>& stage_of,
                                       int stage, int stages);

/// The new number of stage `stage` when stage `from` becomes number `to`.
[[nodiscard]] int renumbered(int stage, int from, int to);

}  // namespace rannc::partition
