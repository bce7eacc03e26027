#pragma once

#include <vector>

#include "partition/blocks/pieces.h"
#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

struct BlockOptions {
  int max_blocks = 128;  ///< at most this many blocks, >= 1
  double rows = 1;       ///< row count at which times and bytes are weighed
};

/// Phase 2. Blocks of nodes (indices ascending) in an order in which every contiguous range is
/// convex, so that stages can be ranges.
struct Blocks {
  std::vector<std::vector<uint32_t>> parts;
  bool depth_first = false;  ///< the order of the pieces was not kept: depth first cuts fewer bytes
};

/// Joins pieces, given in a topological order, to at most `max_blocks` blocks; with no more pieces
/// than that, blocks are pieces. In a linear order the bytes that a border cuts do not depend on
/// the other borders, so joining blocks is removing borders: the border whose two blocks are
/// shortest and whose cut is largest goes first, as long as the joined block takes at most twice
/// the average time (or the time of the longest piece). Equal pairs of blocks, as repeated layers
/// have them, are joined together or not at all. Then each border moves to the smallest cut between
/// its neighbours that keeps both blocks within the same limit. O((V + E) log V).
[[nodiscard]] Blocks make_blocks(const cost::GraphProfile& profile,
                                 const std::vector<Piece>& pieces, const BlockOptions& options);

}  // namespace rannc::partition
