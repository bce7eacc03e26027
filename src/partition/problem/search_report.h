#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::partition {

/// Where the time of an iteration goes. The four parts add up to iteration_ns: the busiest group's
/// compute; what waiting adds when transfers take no time; what transfers add to that; and what
/// is left after the last backward.
struct TimeParts {
  size_t slowest_stage = 0;
  double compute_ns = 0, bubble_ns = 0, transfer_ns = 0, reduction_ns = 0;
  [[nodiscard]] double iteration_ns() const {
    return compute_ns + bubble_ns + transfer_ns + reduction_ns;
  }
};

/// The best plan of another kind, with its time, and its memory when that is why it lost.
struct Alternative {
  std::string
      kind;  ///< "1 stage", "8 stages", "gpipe", "pure data parallelism", "no recompute", ...
  plan::Schedule schedule = plan::Schedule::gpipe;
  int interleave = 1;
  int64_t micro_batches = 1;
  std::vector<int> replicas;    ///< per stage
  std::vector<bool> recompute;  ///< per stage
  TimeParts parts;
  double peak_bytes = 0;  ///< of its fullest rank
  bool fits = true;
};

/// What the search knows besides its answer.
struct SearchReport {
  bool complete = true;  ///< false: the time limit or the user stopped it
  size_t nodes = 0, pieces = 0, blocks = 0;
  int64_t examined = 0;  ///< arrangements whose time was simulated
  double bound_ns = 0;   ///< no plan of this request is faster
  TimeParts parts;       ///< of the winner
  std::vector<Alternative> alternatives;
};

}  // namespace rannc::partition
