#pragma once

#include <set>

#include "ir/sharding/analysis.h"

namespace rannc::ir::sharding {

struct Cut {
  std::set<ContentId> factors;
  Layouts held = {};                      ///< of state: where it is settled already
  std::set<ValueId> held_otherwise = {};  ///< of these values, not along `factors`
  std::set<ContentId> sequences = {};     ///< along which sums stay cut up to the next product
};
/// The graph of place `place` of `ways`.
[[nodiscard]] ShardedGraph graph_of_place(const Graph& graph, const Analysis& analysis,
                                          const Cut& cut, int ways, int place);

}  // namespace rannc::ir::sharding
