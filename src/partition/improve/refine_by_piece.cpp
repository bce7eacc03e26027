#include "partition/improve/refine_by_piece.h"

#include <algorithm>
#include <utility>

#include "partition/blocks/contract.h"
#include "partition/improve/border_pieces.h"
#include "partition/improve/refine.h"

namespace rannc::partition {
namespace {

/// Rounds of refining borders by piece, each around the borders of the one before, and the work of
/// a round: blocks and actions looked at, as so many drafts.
/// tuned by: `planner_bench` (the time), and `ablations cells --problems 150 --inexact`.
/// without it: borders stay those between blocks, of which a large model has 128: plans of 15
/// networks of cells take 0.4 % longer on average, 5.0 % at most.
constexpr int kZoomRounds = 4;
constexpr int64_t kZoomWork = 6'000'000;
constexpr int64_t kLeastZoomTrials = 20, kMostZoomTrials = 600;

}  // namespace

NodePlan zoom(const cost::GraphProfile& profile, const cost::Cluster& cluster,
              const Request& request, const SearchSpace& space, const std::vector<Piece>& pieces,
              NodePlan plan, Stop& stop, int64_t& examined) {
  for (int round = 0; round < kZoomRounds && !stop.now(); ++round) {
    CloseUp view = close_up(pieces, plan, profile.nodes.size());
    const cost::GraphProfile blocks = contract(profile, view.blocks, {});
    const BlockCosts costs(profile, view.blocks);
    const BlockModel model(blocks, request, costs);
    Assessor assessor(model, cluster, request);
    Scored start = plan.scored;
    start.draft.stage_of = view.stage_of;
    start.figures = assessor.assess(start.draft);
    const int64_t work = static_cast<int64_t>(view.blocks.size()) +
                         4 * start.draft.stages() * start.draft.micro_batches;
    const int64_t trials = std::clamp(kZoomWork / work, kLeastZoomTrials, kMostZoomTrials);
    Best best(1);
    const Scored refined = refine(assessor, with_pins(space, view, space.pin_of_node), start,
                                  {.borders_only = true, .most_trials = trials}, stop, best);
    examined += assessor.examined();
    if (refined.figures.iteration_ns >= start.figures.iteration_ns) break;
    plan = to_node_plan(refined, view.blocks);
  }
  return plan;
}

}  // namespace rannc::partition
