#include "rannc/plan/recompute.h"

namespace rannc::plan {

Plan without_recompute(Plan plan) {
  for (Stage& stage : plan.stages) stage.recompute = false;
  return plan;
}

}  // namespace rannc::plan
