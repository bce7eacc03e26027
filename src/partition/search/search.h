#pragma once

#include <cstdint>
#include <vector>

#include "partition/blocks/block_model.h"
#include "partition/problem/heuristics.h"
#include "partition/problem/progress.h"
#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/score/best_drafts.h"
#include "partition/stages/stage_solver.h"
#include "rannc/cost/cluster.h"

namespace rannc::partition {

/// Arrangements up to this much above the best closed form are simulated.
/// tuned by: `benchmarks.planner.constants --problems 40`: with 0.05 and 0.20, plans stay as they
/// are, but for one of 84 that is 9 % shorter with 0.05, because other drafts are left to be
/// refined. With 0, one of 45 is 1.9 % longer.
/// without it: the closed form has the last word, which knows neither stalls nor contention; with
/// more, more arrangements are simulated that lose.
inline constexpr double kMargin = 0.10;

struct SearchOptions {
  int threads = 1;
  bool exactly = true;  ///< small problems: step 4
  Heuristics with = {};
  Progress progress = Progress();
};

/// The whole search over blocks, in four steps, each adding to one `Best`:
///  1. For several linear orders of the blocks and, when they are few, between all down-sets: for
///     layouts of the cluster and micro-batch counts, the optimum of the closed form for each
///     number of stages (stages.h). A narrow search finds a good arrangement first, and its time
///     cuts the full one. All are simulated.
///  2. Interleaved pipelines (chunks.h).
///  3. The best of different arrangements are refined by single changes (refine.h), and, where the
///  graph
///     branches, the best of them by random changes (anneal.h).
///  4. Small problems are searched exactly (exact.h); `exact` says that this was completed.
/// The answer does not depend on the number of threads, unless `stop` cut the search.
struct SearchResult {
  Best best{0};
  int64_t examined = 0;
  bool exact = false;
};
[[nodiscard]] SearchResult search(const cost::GraphProfile& blocks, const BlockModel& model,
                                  const cost::Cluster& cluster, const Request& request,
                                  const SearchSpace& space, const SearchOptions& options,
                                  Stop& stop);

}  // namespace rannc::partition
