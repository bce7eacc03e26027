#pragma once

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"
#include "rannc/plan/plan.h"
#include "rannc/plan/program.h"

namespace rannc::runtime {

/// What the calls of a plan may send and sum, whatever the rows of their batches. `outputs`: that
/// some call returns; `trains`: whether some call has a backward. The same on every rank.
[[nodiscard]] comm::Traffic traffic_of(const plan::Plan& plan, const ir::Graph& graph, int ranks,
                                       const std::vector<ir::ValueId>& outputs, bool trains,
                                       plan::Outputs returned,
                                       const plan::ParameterHolders& holders, bool float32_sums);

/// Where `places` ranks compute layers together: what the ranks of each place send and sum, as
/// `plane` says of one place, and sums over each group. `group_bytes`: of a long one.
[[nodiscard]] comm::Traffic of_all_places(const comm::Traffic& plane, int ranks, int places,
                                          int64_t group_bytes);

}  // namespace rannc::runtime
