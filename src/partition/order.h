#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

// Works on a profile whose nodes are the pieces, in a topological order (see contract.h).

/// Bytes that cross each border of the order at `rows` rows: entry k is the border before position
/// k (0 for the first). A value counts once per border, from its producer to its last user.
[[nodiscard]] std::vector<double> cut_bytes(const cost::GraphProfile& pieces,
                                            const std::vector<uint32_t>& order, double rows);

/// A topological order in which each node comes right after the last of its inputs, as far as
/// possible: the postorder of a depth-first walk from the results back to the inputs. Keeps
/// branches whole, where the given order may run them in turns.
[[nodiscard]] std::vector<uint32_t> depth_first_order(const cost::GraphProfile& pieces);

}  // namespace rannc::partition
