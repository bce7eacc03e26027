#pragma once

#include <cstdint>
#include <vector>

#include "partition/range_costs.h"
#include "partition/space.h"
#include "partition/stages.h"
#include "rannc/cost/cluster.h"

namespace rannc::partition {

/// An arrangement that partition::evaluate() should judge.
struct Arrangement {
  plan::Schedule schedule = plan::Schedule::gpipe;
  int64_t micro_batches = 1;
  std::vector<StageChoice> stages;
  double closed_form_ns = 0;
};

struct SearchResult {
  std::vector<Arrangement> arrangements;  ///< best closed form first; no repetition
  double closed_form_ns = 0;              ///< the best; infinite when nothing fits
  int64_t states = 0;
};

/// Arrangements up to this much above the best closed form are judged.
inline constexpr double kMargin = 0.10;
inline constexpr size_t kMostArrangements = 400;

/// For each number of micro-batches and schedule: the optimum of the closed form for each number of
/// stages, where it is within the margin of the best one of all; and always one stage on all ranks
/// and one stage on one rank, where memory allows. Exact in what it keeps: a narrow search finds a
/// good arrangement first, and its time cuts the full one.
[[nodiscard]] SearchResult search(const RangeCosts& ranges, const cost::Cluster& cluster,
                                  const Request& request, const SearchSpace& space);

}  // namespace rannc::partition
