#include "partition/search/line.h"

#include <numeric>
#include <utility>

#include "partition/blocks/contract.h"
#include "partition/score/lay_out.h"

namespace rannc::partition {
namespace {

std::vector<uint32_t> given_order(size_t blocks) {
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<std::vector<uint32_t>> parts(const std::vector<uint32_t>& order) {
  std::vector<std::vector<uint32_t>> result;
  for (const uint32_t block : order) result.push_back({block});
  return result;
}

}  // namespace

Line::Line(std::vector<uint32_t> blocks_in_order, const cost::GraphProfile& blocks,
           const BlockModel& model, const Request& request)
    : order(std::move(blocks_in_order)),
      profile(contract(blocks, parts(order), {})),
      costs(model.costs(), order),
      ranges(profile, request, costs, model.moments(), order) {}

Line::Line(std::vector<BlockSet> sets, const cost::GraphProfile& blocks, const BlockModel& model,
           const Request& request)
    : order(given_order(model.blocks())),
      profile(contract(blocks, parts(order), {})),
      costs(model.costs(), order),
      ranges(profile, request, costs, std::move(sets), model.moments()) {}

Draft to_draft(const std::vector<StageChoice>& stages, const Line& line,
               const cost::Cluster& cluster, Grid grid, plan::Schedule schedule,
               int64_t micro_batches) {
  Draft draft;
  draft.schedule = schedule;
  draft.micro_batches = micro_batches;
  draft.stage_of.resize(line.order.size());
  std::vector<int> counts;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const uint32_t k : line.ranges.members(stages[s].first, stages[s].last)) {
      draft.stage_of[line.order[k]] = static_cast<int>(s);
    }
    counts.push_back(stages[s].replicas * grid.unit);
  }
  draft.groups = lay_out(cluster, counts, grid.columns, stages.front().first_rank * grid.unit);
  return draft;
}

}  // namespace rannc::partition
