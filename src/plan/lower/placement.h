#pragma once

#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/plan.h"

namespace rannc::plan {

/// Where the nodes of a graph run under a plan, by id.
struct Placement {
  static constexpr int kCloned = -1;
  std::vector<int> stage_of;                   ///< [node]; kCloned: wherever it is needed
  std::vector<std::vector<ir::NodeId>> nodes;  ///< [stage], in graph order
};
/// Throws PlanError naming the node when one is unknown, in two stages, in none, or independent of
/// the rows, so that it cannot be placed.
[[nodiscard]] Placement place(const Plan& plan, const ir::Graph& graph);

/// Values that the stages take from outside: results of other stages, inputs, parameters, buffers
/// and constants; cloned nodes are seen through, and writes to state belong to the stage of their
/// owner (ir::effect_owners). Those of `outputs` that no stage computes count
/// for the last stage. [stage], each ascending and without repeats. O(graph + clones).
[[nodiscard]] std::vector<std::vector<ir::ValueId>> taken_from_outside(
    const ir::Graph& graph, const Placement& placement, const std::vector<ir::ValueId>& outputs);

/// The stage whose own node computes `value`, else kCloned.
[[nodiscard]] int producing_stage(const ir::Graph& graph, const Placement& placement,
                                  ir::ValueId value);

}  // namespace rannc::plan
