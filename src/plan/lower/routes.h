#pragma once

#include <vector>

#include "plan/lower/placement.h"
#include "rannc/ir/graph.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// The messages of all crossings by overlap of row ranges, micro-batch by micro-batch, in the order
/// of `crossings`; scalar outputs need none. `program` gives split, stage_ranks, shares, training,
/// schedule. Throws PlanError for a value of mixed rows that would have to be put together from
/// parts.
[[nodiscard]] std::vector<Transfer> routes(const ir::Graph& graph,
                                           const std::vector<Crossing>& crossings,
                                           const Program& program);

/// What must be summed over ranks, in the order in which it becomes ready: the last stage ends its
/// backwards first; tied parameters come after every stage's own. What replicas share is summed
/// inside of the backwards.
[[nodiscard]] std::vector<Reduction> reductions(const ir::Graph& graph, const Placement& placement,
                                                const Plan& plan, const ParameterHolders& holders);

/// Whether the value is put together by a sum over micro-batches and replicas.
[[nodiscard]] inline bool is_scalar(const ir::Value& value) {
  return value.rows.kind == ir::RowKind::mean || value.rows.kind == ir::RowKind::sum;
}

}  // namespace rannc::plan
