#pragma once

#include <vector>

#include "partition/segments/choose.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// A profile in which segments are nodes, for a search that knows nothing of segments: such a node
/// saves what its segment takes, its backward runs the segment again, and what that saves is its
/// workspace. By evaluate() a plan of it may hold a little less or more than the plan of the nodes.
struct FoldedSegments {
  cost::GraphProfile profile;
  std::vector<NodeRange> nodes;  ///< [node of `profile`] of the profile that was given
  std::vector<bool> again;       ///< [node of `profile`] whether it is a segment
};
/// `segments` ascending, not overlapping.
[[nodiscard]] FoldedSegments fold_segments(const cost::GraphProfile& profile,
                                           const std::vector<NodeRange>& segments);

/// The plan of the nodes that a plan of the folded ones stands for. Stages that recompute stay one
/// segment; predictions and notes go.
[[nodiscard]] plan::Plan unfolded(const FoldedSegments& folded, const cost::GraphProfile& profile,
                                  const plan::Plan& plan);

}  // namespace rannc::partition
