#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::partition {

/// `count` ranks from `first` on.
struct Segment {
  int first = 0;
  int count = 1;
  friend auto operator<=>(const Segment&, const Segment&) = default;
};
/// The ranks of a stage, in the order of its shares.
using Ranks = std::vector<Segment>;

[[nodiscard]] inline int size(const Ranks& ranks) {
  int sum = 0;
  for (const Segment& segment : ranks) sum += segment.count;
  return sum;
}

/// A plan over blocks while it is being searched.
struct Draft {
  plan::Schedule schedule = plan::Schedule::gpipe;
  int interleave = 1;
  int64_t micro_batches = 1;
  std::vector<int> stage_of;    ///< [block]
  std::vector<Ranks> groups;    ///< stage s runs on groups[s % groups.size()]
  std::vector<bool> recompute;  ///< [stage]
  [[nodiscard]] int stages() const { return static_cast<int>(groups.size()) * interleave; }
  [[nodiscard]] const Ranks& ranks(int stage) const {
    return groups[static_cast<size_t>(stage) % groups.size()];
  }
  [[nodiscard]] int replicas(int stage) const { return size(ranks(stage)); }
  friend bool operator==(const Draft&, const Draft&) = default;
};

}  // namespace rannc::partition
