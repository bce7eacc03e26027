#pragma once

#include "rannc/ir/graph.h"

namespace rannc::ir::sharding {

/// `graph` with products of flattened tokens, view(addmm(bias, view(x), weight)), as GPT-2 has
/// them, computed without the views, x @ weight + bias: sums of parts then have a sequence. Nodes
/// and values keep their ids.
[[nodiscard]] Graph products_of_tokens(const Graph& graph);

}  // namespace rannc::ir::sharding
