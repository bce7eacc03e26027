#pragma once

#include "partition/problem/progress.h"
#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/score/assessor.h"
#include "partition/score/best_drafts.h"

namespace rannc::partition {

/// Every plan of a small problem: all chains of down-sets (any convex cut), all numbers of a
/// stage's ranks on each host, every micro-batch count and schedule, and what to recompute. Branch
/// and bound: a beginning is dropped when one of its stages, with the way to it and back, takes
/// longer than the best plan, or what is left cannot be done in time by the ranks that are left.
///
/// Adds to `best`, which should hold a good plan already. Returns whether the search was completed:
/// false when the problem is too large (more than `kMostExactBlocks` blocks or `kMostExactRanks`
/// ranks, too many down-sets, or more beginnings than `kMostBeginnings`). `told` hears how many of
/// these there were.
[[nodiscard]] bool search_exactly(Assessor& assessor, const SearchSpace& space, Stop& stop,
                                  const Progress& told, Best& best);

/// The most blocks, ranks, down-sets and beginnings of plans of a problem that is searched exactly.
/// tuned by: `planner_quality --problems 5000` (what equals the optimum), and seconds of
/// `branches_quality small`.
/// without it: small problems get a plan that is up to 12 % above the optimum; without the limits,
/// larger ones take hours.
inline constexpr size_t kMostExactBlocks = 16;
inline constexpr int kMostExactRanks = 16;
inline constexpr size_t kMostDownSets = 400;
inline constexpr int64_t kMostBeginnings = 2'000'000;

}  // namespace rannc::partition
