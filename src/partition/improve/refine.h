#pragma once

#include "partition/problem/heuristics.h"
#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/score/assessor.h"
#include "partition/score/best_drafts.h"

namespace rannc::partition {

struct RefineOptions {
  bool borders_only = false;   ///< moves blocks, nothing else
  int64_t most_trials = 4000;  ///< drafts assessed
  Heuristics with = {};
};

/// Improves a draft by single changes until none helps: blocks move to a neighbouring stage (one,
/// or several at a border), where the graph branches also parts of a stage to any other (range.h)
/// and stages among those that they do not depend on; a rank moves between stages or from the idle
/// ones, stages change places between hosts, are joined or split, another micro-batch count or
/// schedule. Every draft on the way is added to `best`.
/// `scored.columns` says how ranks are laid out; with 0 (irregular) only blocks move.
[[nodiscard]] Scored refine(Assessor& assessor, const SearchSpace& space, Scored scored,
                            const RefineOptions& options, Stop& stop, Best& best);

}  // namespace rannc::partition
