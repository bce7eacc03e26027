#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

/// Nodes of a profile, from `begin` on and before `end`, that keep only what they take.
struct NodeRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  friend bool operator==(const NodeRange&, const NodeRange&) = default;
};

/// All nodes in segments, so that what the segments take and what the largest of them saves are
/// least together, with `in_flight` micro-batches of which each keeps what its segments take.
///
/// For each of several bounds of what one may save, the borders with the least bytes across them
/// come from a dynamic programme over borders (Chen et al. 2016 cut every sqrt(n) layers; here a
/// value counts once, however many borders it crosses). Nodes of a group are never cut apart. None
/// where no bound gives `at_least` segments.
/// O(bounds * borders^2 + borders * nodes).
[[nodiscard]] std::vector<NodeRange> choose_segments(const cost::GraphProfile& profile,
                                                     double in_flight, size_t at_least = 1);

}  // namespace rannc::partition
