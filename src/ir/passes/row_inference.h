#pragma once

#include <string>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// What infer_rows() finds, with what row_mixes() has to say about it.
struct RowInference {
  std::vector<Rows> rows;             ///< of each value
  std::vector<std::string> begins;    ///< by node: why mixing begins here; "" where it does not
  std::vector<std::string> to_state;  ///< by node: why its write to a buffer mixes rows, or ""
};

/// O(graph).
[[nodiscard]] RowInference infer(const Graph& graph);

}  // namespace rannc::ir
