#include "partition/evaluate/predictions.h"

#include "rannc/util/whole.h"

namespace rannc::partition {

plan::Prediction rounded(const StageEvaluation& stage) {
  return {.rows = whole(stage.rows),
          .forward_ns = whole(stage.forward_ns),
          .backward_ns = whole(stage.backward_ns),
          .reduce_ns = whole(stage.reduce_ns),
          .param_bytes = whole(stage.param_bytes),
          .gradient_bytes = whole(stage.gradient_bytes),
          .optimizer_bytes = whole(stage.optimizer_bytes),
          .activation_bytes = whole(stage.activation_bytes),
          .buffer_bytes = whole(stage.buffer_bytes),
          .workspace_bytes = whole(stage.workspace_bytes),
          .peak_bytes = whole(stage.peak_bytes)};
}

plan::Plan with_predictions(plan::Plan plan, const Evaluation& evaluation) {
  plan.iteration_ns = whole(evaluation.iteration_ns);
  for (size_t stage = 0; stage < evaluation.stages.size(); ++stage) {
    plan.stages[stage].predicted = rounded(evaluation.stages[stage]);
  }
  return plan;
}

}  // namespace rannc::partition
