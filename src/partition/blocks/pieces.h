#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

/// Nodes that no plan may separate: indices into GraphProfile::nodes, ascending.
using Piece = std::vector<uint32_t>;

/// Phase 1. The smallest parts that can be stages: nodes of one `group` stay together, and so do
/// nodes that would otherwise depend on each other in a circle through a group. The pieces come in
/// a topological order, close to the order of the nodes: among the pieces that are ready, the one
/// with the smallest node goes first. O((V + E) log V).
[[nodiscard]] std::vector<Piece> atomic_pieces(const cost::GraphProfile& profile);

}  // namespace rannc::partition
