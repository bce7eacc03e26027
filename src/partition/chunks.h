#pragma once

#include "partition/assess.h"
#include "partition/best.h"
#include "partition/range_costs.h"
#include "partition/space.h"
#include "partition/stage_costs.h"
#include "partition/stop.h"

namespace rannc::partition {

/// Interleaved pipelines over a line of blocks: for every number of chunks and groups, all groups
/// with equally many ranks (or those that are forced), and ranges whose longest stage is as short
/// as it can be where pins allow. `line[k]` is the block at position k. Each is assessed and added to `best`.
/// O(chunks * groups * blocks * log) per micro-batch count.
void search_chunks(Assessor& assessor, const RangeCosts& ranges, const std::vector<uint32_t>& line,
                   const SearchSpace& space, Grid grid, Stop& stop, Best& best);

}  // namespace rannc::partition
