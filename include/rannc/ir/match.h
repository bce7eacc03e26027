#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// A trace of a model, and what its inputs, outputs and objects are called on every rank.
struct NamedGraph {
  const Graph* graph = nullptr;      ///< verifies
  std::vector<std::string> inputs;   ///< where each stands in a call; no two are equal
  std::vector<std::string> outputs;  ///< where each stands in what the model returns; likewise
  std::vector<std::string> objects;  ///< by ObjectId: what it is, whatever its number
};

/// How one trace of a model appears in another one, the reference.
struct Match {
  /// "" where both compute the same; else what differs, in words, with the node's name, module and
  /// source line in both. The members below are then undefined.
  std::string difference;
  /// For each object of the reference, the one of the trace in its place; invalid where the
  /// reference's graph does not refer to it.
  std::vector<ObjectId> objects;
  std::vector<size_t> inputs;   ///< for each input of the reference, its index in the trace
  std::vector<size_t> outputs;  ///< for each output of the reference, its index in the trace
};

/// Tells whether two traces compute the same, though not in the same order: each input, parameter,
/// buffer and output has its counterpart by name, and each node that one of these depends on has
/// one that does the same with the counterparts of what it takes. Where a storage is written, every
/// node that touches it comes after the same writes in both. Names of nodes and results, their
/// modules and source lines may differ, and so may what has no effect.
///
/// Operators that draw random numbers come in the same order, unless `keyed_draws` says that their
/// numbers do not depend on it. Objects may draw in any order.
///
/// A node is found by the way that leads to it from an output, through positions of operands, so
/// there is nothing to choose and nothing to guess: O(graph).
[[nodiscard]] Match match(const NamedGraph& reference, const NamedGraph& trace, bool keyed_draws);

}  // namespace rannc::ir
