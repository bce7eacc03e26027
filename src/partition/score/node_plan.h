#pragma once

#include <cstdint>
#include <vector>

#include "partition/score/best_drafts.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// A plan with its stages as sets of nodes.
struct NodePlan {
  Scored scored;                             ///< `stage_of` is of other blocks
  std::vector<std::vector<uint32_t>> nodes;  ///< [stage] ascending
};

/// The nodes of the stages of a draft over `blocks`.
[[nodiscard]] NodePlan to_node_plan(const Scored& scored,
                                    const std::vector<std::vector<uint32_t>>& blocks);

/// Without predictions and notes.
[[nodiscard]] plan::Plan to_plan(const cost::GraphProfile& profile, const NodePlan& found);

}  // namespace rannc::partition
