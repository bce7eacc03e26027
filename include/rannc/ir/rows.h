#pragma once

#include <string>
#include <vector>

#include "rannc/ir/graph.h"

// Which rows of the batch a value holds, and where rows interact.
namespace rannc::ir {

/// Sets `rows` of every result from the rows of the inputs, operator by operator (rule table in
/// src/ir/rows/row_rules.cpp). An operator without a rule: its results are `apart` but not
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

/// Why rows interact: the first of row_mixes(), with module and line. Empty when none do.
[[nodiscard]] std::string why_rows_interact(const Graph& graph);

/// Why rows may interact: the first operator whose results are not proved to keep them apart.
/// Requires infer_rows().
[[nodiscard]] std::string why_rows_may_interact(const Graph& graph);

/// Why shares of the batch that run apart do not give the numbers of the whole: rows interact, a
/// node counts by its share, or batch normalisation takes statistics. Empty when they should give
/// them. Requires infer_rows().
[[nodiscard]] std::string why_shares_differ(const Graph& graph);

/// A node that takes the entries of an input, or of a view of it, for positions along the rows of
/// another value, or for where examples begin.
struct RowPositions {
  NodeId node;
  ValueId input;
};
/// Every such node, in graph order. Requires infer_rows().
[[nodiscard]] std::vector<RowPositions> row_positions(const Graph& graph);

/// Whether no tensor grows with the square of the rows, as similarities of all pairs do, nor one
/// inside an operator may: attention whose words are the rows. Requires infer_rows().
[[nodiscard]] bool sizes_are_linear(const Graph& graph);

/// For each node, whether it has an effect or a result that depends on the rows of the batch. The
/// others are cloned into every stage that uses them. Those are the nodes without rows, and those
/// that make their rows from nothing, for whatever share: torch.arange(B), torch.zeros(B, 4), and
/// views of them that nothing writes. Requires infer_rows().
[[nodiscard]] std::vector<bool> depends_on_rows(const Graph& graph);

/// For each node, whether its results are the same for all micro-batches of a call, and may be
/// computed once for all of them. Neither rows nor an input that is not `known` reach it, it draws
/// and writes nothing, and nothing writes what it reads or gives. Either its results take no
/// gradient, or it is a cast from floating dtype to floating dtype, whose backward needs nothing of
/// its forward. `known`: of each input, whether all micro-batches get the same.
[[nodiscard]] std::vector<bool> per_call(const Graph& graph, const std::vector<bool>& known);

/// Whether a node is a cast from a floating dtype to one.
[[nodiscard]] bool is_float_cast(const Graph& graph, NodeId node);

/// Buffers and parameters that are written, but never with what depends on the rows: the vectors of
/// spectral_norm's power iteration, counters of calls, a teacher that follows its student. One
/// forward pass writes them once, however many shares it has. Not the counters beside running
/// statistics, which count the shares that these have taken.
[[nodiscard]] std::vector<ValueId> row_free_state(const Graph& graph);

}  // namespace rannc::ir
