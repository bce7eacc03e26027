#pragma once

#include <cstddef>
#include <vector>

#include "partition/stages/stage_costs.h"

namespace rannc::partition {

/// Lower bounds on what the stages in front of a border cost: for each border and number of ranks
/// in front of it, by the recurrence of the search without memory in flight, and with whichever
/// link class is faster. One per number of micro-batches, for all searches. O(N^2 R^2).
class FrontBounds {
 public:
  struct Bound {
    double forward_ns = 0;  ///< sum of forwards
    double sum_ns = 0;      ///< sum of forwards and backwards
    double period_ns = 0;   ///< longest period
  };
  explicit FrontBounds(const StageCosts& costs);
  /// The bound of blocks [0, border) on at most `ranks` ranks; infinite where none is possible.
  const Bound& at(int border, int ranks) const {
    return bounds_[static_cast<size_t>(border) * stride_ + static_cast<size_t>(ranks)];
  }

 private:
  size_t stride_;
  std::vector<Bound> bounds_;
};

}  // namespace rannc::partition
