#include "rannc/plan/groups.h"
#include "rannc/plan/mesh.h"

namespace rannc::plan {

Plan on_one_replica(const Plan& plan) {
  Plan result = plan;
  result.schedule = Schedule::gpipe;
  result.interleave = 1;
  result.micro_batches = 1;
  result.iteration_ns = 0;
  const size_t groups = plan.stages.size() / static_cast<size_t>(plan.interleave);
  result.stages.resize(groups);
  for (size_t group = 0; group < groups; ++group) {
    Stage& stage = result.stages[group];
    const auto first = mesh_of(plan.stages[group]).ranks_of_replica(0);
    stage.ranks.assign(first.begin(), first.end());
    stage.predicted.reset();
    stage.nodes.clear();
    for (size_t part = 0; part < static_cast<size_t>(plan.interleave); ++part) {
      const Stage& from = plan.stages[group * static_cast<size_t>(plan.interleave) + part];
      stage.nodes.insert(stage.nodes.end(), from.nodes.begin(), from.nodes.end());
      stage.recompute = stage.recompute || from.recompute;
    }
  }
  return result;
}

}  // namespace rannc::plan
