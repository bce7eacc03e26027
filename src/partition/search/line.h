#pragma once

#include <cstdint>
#include <vector>

#include "partition/blocks/block_model.h"
#include "partition/blocks/down_sets.h"
#include "partition/problem/draft.h"
#include "partition/stages/stage_costs.h"
#include "rannc/cost/cluster.h"

namespace rannc::partition {

/// The borders between which stages are searched: those of the blocks in one of their linear
/// orders, or all down-sets.
struct Line {
  std::vector<uint32_t> order;
  cost::GraphProfile profile;
  BlockCosts costs;
  RangeCosts ranges;

  Line(std::vector<uint32_t> blocks_in_order, const cost::GraphProfile& blocks,
       const BlockModel& model, const Request& request);
  Line(std::vector<BlockSet> sets, const cost::GraphProfile& blocks, const BlockModel& model,
       const Request& request);
};

/// A candidate of the closed form as a draft.
[[nodiscard]] Draft to_draft(const std::vector<StageChoice>& stages, const Line& line,
                             const cost::Cluster& cluster, Grid grid, plan::Schedule schedule,
                             int64_t micro_batches);

}  // namespace rannc::partition
