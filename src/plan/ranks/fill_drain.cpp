#include "rannc/plan/outside_loss/fill_drain.h"

namespace rannc::plan {

Plan fill_drain(const Plan& plan) {
  Plan result = plan;
  result.schedule = Schedule::gpipe;
  result.interleave = 1;
  result.iteration_ns = 0;
  const auto parts = static_cast<size_t>(plan.interleave);
  result.stages.resize(plan.stages.size() / parts);
  for (size_t group = 0; group < result.stages.size(); ++group) {
    Stage& stage = result.stages[group];
    stage.ranks = plan.stages[group].ranks;
    stage.predicted.reset();
    stage.nodes.clear();
    stage.segments.clear();
    for (size_t part = 0; part < parts; ++part) {
      const Stage& from = plan.stages[group * parts + part];
      stage.nodes.insert(stage.nodes.end(), from.nodes.begin(), from.nodes.end());
      stage.recompute = stage.recompute || from.recompute;
      stage.segments.insert(stage.segments.end(), from.segments.begin(), from.segments.end());
    }
    if (stage.recompute) stage.segments.clear();
  }
  return result;
}

}  // namespace rannc::plan
