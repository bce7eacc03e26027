#pragma once

#include "plan/lower/placement.h"
#include "rannc/ir/graph.h"
#include "rannc/plan/plan.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// Fills in Program::buckets, order and issues; everything else is there. docs/algorithms.md says
/// why the Program then ends on any transport. O(communications log communications).
void put_in_order(Program& program, const Plan& plan, const ir::Graph& graph,
                  const Placement& placement);

}  // namespace rannc::plan
