#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

/// The same model with one node per part: part k is node k, named "k". A part outputs the values
/// that other parts read and has the distinct parameters and graph inputs of its nodes. Costs are
/// the sums of the nodes' costs (workspace: the largest) at each of `rows`, so a plan over parts
/// has exactly the time and memory of the plan over nodes wherever it asks for one of these row
/// counts.
///
/// `parts` must hold every node once and be in a topological order. O((V + E) * rows).
[[nodiscard]] cost::GraphProfile contract(const cost::GraphProfile& profile,
                                          const std::vector<std::vector<uint32_t>>& parts,
                                          const std::vector<int64_t>& rows);

}  // namespace rannc::partition
