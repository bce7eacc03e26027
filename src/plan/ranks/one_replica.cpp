#include "rannc/plan/groups.h"
#include "rannc/plan/mesh.h"
#include "rannc/plan/outside_loss/fill_drain.h"

namespace rannc::plan {

Plan on_one_replica(const Plan& plan) {
  Plan result = fill_drain(plan);
  result.micro_batches = 1;
  for (Stage& stage : result.stages) {
    stage.shares_parameters = false;
    stage.shared.clear();
    const auto first = mesh_of(stage).ranks_of_replica(0);
    stage.ranks = {first.begin(), first.end()};
  }
  return result;
}

}  // namespace rannc::plan
