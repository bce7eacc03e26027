#pragma once

#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// The graph of the marked nodes, in order, with the values that they read and produce.
///
/// Values in `keep` exist even if no marked node touches them. A result whose producer is not
/// marked becomes an input with a storage of its own. Inputs are ascending by id of `graph`;
/// `outputs` are translated.
[[nodiscard]] Graph subgraph(const Graph& graph, const std::vector<bool>& nodes,
                             const std::vector<ValueId>& keep, const std::vector<ValueId>& outputs);

}  // namespace rannc::ir
