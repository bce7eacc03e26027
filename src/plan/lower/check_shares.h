#pragma once

#include "plan/lower/placement.h"
#include "rannc/ir/graph.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// Throws PlanError, naming the rank, when a batch normalisation in training would see a single
/// value per channel: in some rank's share, or, of the whole batch (Node::whole_batch), at all. It
/// has no variance; torch refuses such an input, in Python code that a captured graph no longer
/// runs.
void check_statistics(const Program& program, const ir::Graph& graph, const Placement& placement);

}  // namespace rannc::plan
