#include "rannc/plan/recompute.h"

namespace rannc::plan {

Plan without_recompute(Plan plan) {
  for (Stage& stage : plan.stages) {
    stage.recompute = false;
    stage.segments.clear();
  }
  return plan;
}

}  // namespace rannc::plan
