#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// What a communication holds up on each of its ranks until it has ended.
enum class Blocking {
  stream,      ///< its own: there is one for forward, one for backward, one for reductions
  everything,  ///< computations, too: there is one stream
};

/// What of a Program runs.
enum class Extent {
  whole,
  forward_only,  ///< up to return_outputs; the whole where it has none
  without_sums,  ///< of gradients: under no_sync()
};

/// Whether a Program ends where each communication needs all its ranks at the same time. Ranks
/// issue in the order of Program::issues, and a computation waits for what it takes. Then what
/// waits for what is a graph that is the same however fast anything is, and the Program ends if and
/// only if it has no circle.
class Rendezvous {
 public:
  /// Requires that everything but the order of issues is right.
  Rendezvous(const Program& program, const ir::Graph& graph);

  /// Empty when it ends; else what each rank waits for. O(communications + actions).
  [[nodiscard]] std::string why_blocked(Extent extent, Blocking blocking) const;

 private:
  /// A forward or backward on one rank, in parts between its gathers.
  struct Computation {
    int first = 0;  // steps are numbered through: communications, then the parts of computations
    int parts = 0;
    size_t position = 0;  // of the first part in the rank's sequence
  };
  /// On one rank, `after` takes what `before` gives.
  struct Need {
    int before = 0;
    int after = 0;
  };
  /// What one rank starts, in order.
  struct Sequence {
    std::vector<int> steps;
    std::vector<Need> needs;
    size_t returned_at = 0;  // steps up to return_outputs, included
  };
  class Builder;
  class Game;

  [[nodiscard]] bool is_communication(int step) const {
    return step < static_cast<int>(program_.order.size());
  }
  [[nodiscard]] std::string name_of(int step) const;
  [[nodiscard]] std::string misplaced(Rank rank, const Need& need) const;

  const Program& program_;
  std::vector<Sequence> ranks_;
  std::vector<std::string> names_;  // of what is no communication
};

}  // namespace rannc::plan
