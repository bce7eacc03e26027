#pragma once

#include <vector>

#include "rannc/ir/graph.h"

// Graphs that compute the same in another way.
namespace rannc::ir {

/// Writes means over targets that are not ignored (cross_entropy_loss, nll_loss) as a sum divided
/// by their number, or by the sum of their class weights. A mean over none is NaN, as in torch.
[[nodiscard]] Graph exact_means(const Graph& graph);

/// Every random number can then be told from seed, step, node and sample: attention with dropout
/// inside is written as products, softmax and dropout. Throws TraceError that names an operator
/// without a rule (keyed_draw()), its module and its line.
[[nodiscard]] Graph explicit_draws(const Graph& graph);

/// Nothing is dropped: every drop probability is 0, also those of attention and of recurrent
/// layers.
[[nodiscard]] Graph without_dropout(Graph graph);

/// The graph at one number of rows, to be compared with others: each size and integer is what it is
/// there, and there is nothing about rows. It cannot run. A whole number given as a float is an
/// integer in it, and at one row, which lies in memory in any order, views and copies are the same.
[[nodiscard]] Graph at_rows(const Graph& graph, int64_t rows);

/// A trace at `rows` rows, whose sizes are all fixed, as a graph for calls of that many rows on all
/// ranks together, and for no others. It begins by taking all rows of each input, from where on
/// they interact, and ends by dealing out the outputs that have as many entries in dimension 0.
[[nodiscard]] Graph for_rows_alone(const Graph& trace, int64_t rows);

/// A graph in parts: what has to be known of the whole batch before any share of it can run.
struct HoistedSums {
  /// One after another. Inputs: those of the graph, then the results of the preludes before.
  /// Outputs: of kind sum or mean, so they can be put together from parts of the batch.
  std::vector<Graph> preludes;
  /// Inputs: those of the graph, then the whole batch's numbers of all preludes, which are the same
  /// whatever the share. Rows that interact by these numbers alone do not interact here any more.
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

/// A buffer that a batch_norm or instance_norm node updates with a share's statistics.
struct RunningStatistic {
  ValueId buffer;
  NodeId node;
  double momentum = 0.1;     ///< new = (1 - momentum) * old + momentum * statistic
  bool of_each_row = false;  ///< instance_norm: the mean of statistics that each row has by itself
};
[[nodiscard]] std::vector<RunningStatistic> running_statistics(const Graph& graph);

/// Nodes that normalise by the statistics of the rows they get: batch_norm in training.
[[nodiscard]] std::vector<NodeId> batch_normalisations(const Graph& graph);

/// Marks them Node::whole_batch. Throws TraceError, with module and line, for operators that also
/// return the statistics.
[[nodiscard]] Graph whole_batch_statistics(const Graph& graph);

}  // namespace rannc::ir
