#pragma once

#include <cstdint>

#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/score/assessor.h"
#include "partition/score/best_drafts.h"

namespace rannc::partition {

struct AnnealOptions {
  int64_t trials = 4000;  ///< drafts assessed
  double hot = 0.03;      ///< share of the time by which a worse draft is taken, at the beginning
  uint64_t seed = 0;      ///< equal seeds make equal changes
};

/// Where the graph branches, refine() gets stuck: changes one after the other may have to make a
/// plan worse before it becomes better. Here random changes of a draft are taken when they make it
/// worse by less than a threshold, which falls to nothing (threshold accepting: Dueck and Scheuer,
/// Journal of Computational Physics 1990, simulated annealing without chance): a block or a part of
/// a stage moves to any stage where it may be, a stage moves in the order of stages, is split or
/// joined, ranks and places change, another count. Every draft on the way is added to `best`, and
/// the best of them returned. As refine(), leaves a draft as it is whose ranks are irregular or
/// which is interleaved.
[[nodiscard]] Scored anneal(Assessor& assessor, const SearchSpace& space, const Scored& start,
                            const AnnealOptions& options, Stop& stop, Best& best);

}  // namespace rannc::partition
