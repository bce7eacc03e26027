#pragma once

#include <vector>

#include "rannc/ir/graph.h"

// What stays of a graph: the stages that it is cut into, and what they need.
namespace rannc::ir {

/// Removes nodes that no graph output and no write to a buffer or to a live value depends on.
/// Node order and names do not change. Inputs stay. Requires verify(graph); the result verifies.
[[nodiscard]] Graph drop_dead_nodes(const Graph& graph);

/// [value]: whether one of `outputs` may depend on it, or on what shares its storage.
[[nodiscard]] std::vector<bool> leading_to(const Graph& graph, const std::vector<ValueId>& outputs);

/// Sets of nodes that must share a stage: all that touch a storage up to its last write, as its
/// content is final only then. (Inputs, parameters and buffers: all that ever touch it.) Each set
/// ascending and disjoint from the others; single nodes are left out. Nodes that do not depend on
/// the rows are not in any set.
[[nodiscard]] std::vector<std::vector<NodeId>> inseparable_nodes(const Graph& graph);

/// A row-free node that writes a parameter or buffer, as num_batches_tracked.add_(1), and the
/// row-dependent node whose stage runs it.
struct EffectOwner {
  NodeId effect;
  NodeId owner;
};
/// The owner of every such node, in graph order: the first row-dependent node of the same module,
/// else of the nearest module above that has one. Empty when no node depends on the rows.
[[nodiscard]] std::vector<EffectOwner> effect_owners(const Graph& graph);

/// One stage as a graph of its own: `nodes` plus clones of the row-independent nodes that they
/// need, in graph order. Inputs: the values it takes from other stages and the graph inputs it
/// uses (kind `input`, named as in `graph`), ascending by value id of `graph`. Outputs: the values
/// in `keep`, in that order. Parameters, buffers and constants keep their names and objects.
/// Row-free writes to state run in the stage of their owner (effect_owners()), and in every other
/// stage that reads that state.
[[nodiscard]] Graph extract(const Graph& graph, const std::vector<NodeId>& nodes,
                            const std::vector<ValueId>& keep);

}  // namespace rannc::ir
