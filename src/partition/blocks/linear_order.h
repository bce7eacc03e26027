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

/// A topological order in which the bytes that wait for a user stay few: of the nodes that are
/// ready, the one goes next that adds fewest. O((V + E) log V).
[[nodiscard]] std::vector<uint32_t> fewest_bytes_order(const cost::GraphProfile& pieces,
                                                       double rows);

/// The orders above and the given one, each once; the one that cuts fewest bytes, summed over all
/// borders, first.
[[nodiscard]] std::vector<std::vector<uint32_t>> linear_orders(const cost::GraphProfile& pieces,
                                                               double rows);

}  // namespace rannc::partition
