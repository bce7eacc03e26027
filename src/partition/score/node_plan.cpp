#include "partition/score/node_plan.h"

#include <algorithm>

namespace rannc::partition {

NodePlan to_node_plan(const Scored& scored, const std::vector<std::vector<uint32_t>>& blocks) {
  NodePlan plan{scored, {}};
  plan.nodes.resize(static_cast<size_t>(scored.draft.stages()));
  for (size_t block = 0; block < blocks.size(); ++block) {
    std::vector<uint32_t>& nodes = plan.nodes[static_cast<size_t>(scored.draft.stage_of[block])];
    nodes.insert(nodes.end(), blocks[block].begin(), blocks[block].end());
  }
  for (std::vector<uint32_t>& nodes : plan.nodes) std::ranges::sort(nodes);
  return plan;
}

plan::Plan to_plan(const cost::GraphProfile& profile, const NodePlan& found) {
  plan::Plan plan;
  const Draft& draft = found.scored.draft;
  plan.schedule = draft.schedule;
  plan.interleave = draft.interleave;
  plan.micro_batches = draft.micro_batches;
  for (int s = 0; s < draft.stages(); ++s) {
    plan::Stage& stage = plan.stages.emplace_back();
    for (const uint32_t node : found.nodes[static_cast<size_t>(s)]) {
      stage.nodes.push_back(profile.nodes[node].name);
    }
    for (const Segment& segment : draft.ranks(s)) {
      for (int k = 0; k < segment.count; ++k) stage.ranks.push_back(segment.first + k);
    }
    stage.recompute = draft.recompute[static_cast<size_t>(s)];
  }
  return plan;
}

}  // namespace rannc::partition
