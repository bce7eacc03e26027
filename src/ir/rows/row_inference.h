#pragma once

#include <string>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// What infer_rows() finds, with what row_mixes() has to say about it.
struct RowInference {
  std::vector<Rows> rows;             ///< by value
  std::vector<std::string> begins;    ///< by node: why mixing begins here; "" where it does not
  std::vector<std::string> to_state;  ///< by node: why its write to a buffer mixes rows, or ""
};

/// O(graph).
[[nodiscard]] RowInference infer(const Graph& graph);

/// For each node, whether a mixed result of it reaches a graph output or a write to state through
/// results that are all mixed. What is only used to pair rows with their own data, as the arange in
/// x[arange(B), i] or the order in which rows are sorted until they are put back, does no harm.
[[nodiscard]] std::vector<bool> nodes_whose_mixing_matters(const Graph& graph,
                                                           const RowInference& found);

}  // namespace rannc::ir
