#pragma once

#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/score/assessor.h"
#include "partition/score/best_drafts.h"
#include "partition/stages/range_costs.h"
#include "partition/stages/stage_costs.h"

namespace rannc::partition {

/// Interleaved pipelines over a line of blocks: for every number of chunks and groups, all groups
/// with equally many ranks (or those that are forced), and ranges whose longest stage is as short
/// as it can be where pins allow. `line[k]` is the block at position k. Each is assessed and added
/// to `best`. O(chunks * groups * blocks * log) per micro-batch count.
void search_chunks(Assessor& assessor, const RangeCosts& ranges, const std::vector<uint32_t>& line,
                   const SearchSpace& space, Grid grid, Stop& stop, Best& best);

}  // namespace rannc::partition
