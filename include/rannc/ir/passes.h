#pragma once

#include <string>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// Removes nodes that no graph output and no write to a buffer or to a live value depends on.
/// Node order and names do not change. Inputs stay. Requires verify(graph); the result verifies.
[[nodiscard]] Graph drop_dead_nodes(const Graph& graph);

/// Sets `rows` of every result from the rows of the inputs, operator by operator (rule table in
/// src/ir/passes/row_rules.cpp). An operator without a rule: its results are `apart` but not
/// `proved` where the shapes allow it, else `mixed`.
[[nodiscard]] Graph infer_rows(const Graph& graph);

/// A node whose rows interact outside known loss reductions and batch normalisation, so that only
/// the whole batch at once gives the model's numbers.
struct RowMix {
  NodeId node;
  std::string reason;  ///< "aten::mean.dim over dimension 0, which holds the rows"
};
/// Every such node, in graph order. Requires infer_rows().
[[nodiscard]] std::vector<RowMix> row_mixes(const Graph& graph);

/// For each node, whether it has an effect or a result that depends on the rows of the batch. The
/// others are cloned into every stage that uses them. Those are the nodes without rows, and those
/// that make their rows from nothing, for whatever share: torch.arange(B), torch.zeros(B, 4), and
/// views of them that nothing writes. Requires infer_rows().
[[nodiscard]] std::vector<bool> depends_on_rows(const Graph& graph);

/// Writes means over targets that are not ignored (cross_entropy_loss, nll_loss) as a sum divided
/// by their number, or by the sum of their class weights. A mean over none is NaN, as in torch.
[[nodiscard]] Graph exact_means(const Graph& graph);

/// Every random number can then be told from seed, step, node and sample: attention with dropout
/// inside is written as products, softmax and dropout. Throws TraceError that names an operator
/// without a rule (keyed_draw()), its module and its line.
[[nodiscard]] Graph explicit_draws(const Graph& graph);

/// A graph in parts: what has to be known of the whole batch before any share of it can run.
struct HoistedSums {
  /// One after another. Inputs: those of the graph, then the results of the preludes before.
  /// Outputs: of kind sum or mean, so they can be put together from parts of the batch.
  std::vector<Graph> preludes;
  /// Inputs: those of the graph, then the whole batch's numbers of all preludes, which are the same
  /// whatever the share. No rows interact in it that interact only by these numbers.
  Graph main;
};
/// Moves sums and means over the batch that depend on inputs, constants and unwritten buffers alone
/// out of the graph, where rows interact otherwise: the divisor in (loss * mask).sum() / mask.sum()
/// is then an input, so the quotient is a sum. Where a mean or a constant is added to a sum, it
/// becomes a sum by its share of the rows. Without such sums there is no prelude, and `main` is the
/// graph. Requires infer_rows(), and gives it.
///
/// `by_share`: where the whole graph is otherwise right in shares, nodes that are not linear in a
/// mean (sqrt(mse), log(mean(exp))) are marked Node::by_share, and what they give counts as a mean.
[[nodiscard]] HoistedSums hoist_input_sums(const Graph& graph, bool by_share = false);

/// A graph, and its nodes that are not as they were.
struct DenseGradients {
  Graph graph;
  std::vector<NodeId> changed;
};

/// Embeddings give dense gradients (torch's option `sparse` is off): gradients of micro-batches and
/// replicas are summed in arrays. Their numbers are the same.
[[nodiscard]] DenseGradients dense_gradients(Graph graph);

/// A buffer that a batch_norm node updates with a share's statistics.
struct RunningStatistic {
  ValueId buffer;
  NodeId node;
  double momentum = 0.1;  ///< new = (1 - momentum) * old + momentum * statistic
};
[[nodiscard]] std::vector<RunningStatistic> running_statistics(const Graph& graph);

/// Nodes that normalise by the statistics of the rows they get: batch_norm in training.
[[nodiscard]] std::vector<NodeId> batch_normalisations(const Graph& graph);

/// Marks them Node::whole_batch. Throws TraceError, with module and line, for operators that also
/// return the statistics.
[[nodiscard]] Graph whole_batch_statistics(const Graph& graph);

/// Buffers and parameters that are written, but never with what depends on the rows: the vectors of
/// spectral_norm's power iteration, counters of calls, a teacher that follows its student. One
/// forward pass writes them once, however many shares it has. Not the counters beside running
/// statistics, which count the shares that these have taken.
[[nodiscard]] std::vector<ValueId> row_free_state(const Graph& graph);

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
