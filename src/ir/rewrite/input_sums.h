#pragma once

#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// Sums and means over the batch that can be computed before anything else: from inputs, constants
/// and buffers that nothing writes, without gradient and without random numbers, and on which no
/// write to a buffer depends.
class InputSums {
 public:
  /// Requires infer_rows(). O(graph).
  explicit InputSums(const Graph& graph);

  /// The value to compute beforehand so that `value`, such a sum, has no rows: the storage that it
  /// is a view of, and before a cast, where an integer is still exact. Invalid when there is none.
  [[nodiscard]] ValueId source(ValueId value) const;

 private:
  void find_impure();
  void find_feeding_state();
  [[nodiscard]] bool is_impure(NodeId node) const;
  [[nodiscard]] bool fits(ValueId value) const;
  [[nodiscard]] bool is_impure(ValueId value) const;
  bool spoil(ValueId value);
  bool spoil_outputs(const Node& node);

  const Graph& graph_;
  std::vector<bool> impure_;         // by storage: what it holds
  std::vector<bool> impure_views_;   // by value: who makes it takes something impure, too
  std::vector<bool> feeding_state_;  // by storage
};

}  // namespace rannc::ir
