#pragma once

#include <set>

#include "ir/sharding/analysis.h"

namespace rannc::ir::sharding {

/// The graph of place `place` of `ways`, cut along these factors.
[[nodiscard]] ShardedGraph graph_of_place(const Graph& graph, const Analysis& analysis,
                                          const std::set<ContentId>& cut, int ways, int place);

}  // namespace rannc::ir::sharding
