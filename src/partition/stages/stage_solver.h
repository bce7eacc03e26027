#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "partition/stages/front_bounds.h"
#include "partition/stages/stage_costs.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// Time of one iteration by the closed form, the objective of the search:
///
///   sum over s of (f_s + g_s)  +  (m - 1) * max over s of period_s  +  exposed reduction
///
/// f_s and g_s are StageTime's forward and backward (recompute included). A transfer between
/// neighbours is charged as half of what leaves the one and half of what enters the other, each at
/// its own largest share; a value that skips stages is charged the same way, where it leaves and
/// where it enters. That makes every term a property of one stage. The last backward of stage s
/// ends when those of the stages before it (g of 0..s-1) are still to come, so its reduction is
/// exposed by `reduce_s - sum over u < s of g_u`; the largest of these counts, if positive. Tied
/// parameters are charged to each stage that uses them, as a ring of its replicas and one more.
///
/// It guides: what a plan takes is decided by partition::evaluate().
[[nodiscard]] double closed_form(const StageCosts& costs, const std::vector<StageChoice>& stages);

/// Micro-batches that stage `stage` of `stages` holds at a time.
[[nodiscard]] int64_t in_flight(plan::Schedule schedule, int64_t micro_batches, int stages,
                                int stage);

struct Candidate {
  std::vector<StageChoice> stages;  ///< in pipeline order; idle ranks, if any, come first
  double closed_form_ns = 0;
};

struct StageSearch {
  plan::Schedule schedule = plan::Schedule::gpipe;
  bool one_replica = false;
  std::optional<int> stages = {};                              ///< exactly so many
  std::optional<std::vector<int>> replicas = {};               ///< exactly these; fixes `stages`
  double cutoff_ns = std::numeric_limits<double>::infinity();  ///< nothing above is of interest
  bool each_stage_count =
      false;     ///< the optimum of every number of stages, not only the overall one
  int beam = 0;  ///< states kept per cell; 0: all, exact
  /// [block of the ranges] the stage that it must be in, -1: the last, below: any. Empty: no pins.
  std::vector<int> pins = {};
};

struct StageAnswer {
  std::vector<Candidate> candidates;  ///< best first; one per number of stages at most
  int64_t states = 0;                 ///< partial plans that were kept
  bool memory_mattered = false;       ///< some stage could not hold all micro-batches unrecomputed
};

/// Phase 3. Splits the line of blocks into stages with replicas, so that closed_form() is smallest
/// among the arrangements whose every stage fits in memory. Recompute is chosen per stage: only
/// where memory demands it, because it never makes a stage faster.
///
/// Exact, by dynamic programming from the last block to the first over (blocks, ranks used). A
/// state keeps the sum of f + g, the latest end (forwards, then backwards and the reduction behind
/// them), the longest period and the number of stages; only states that no other state beats in all
/// four survive, and those whose lower bound (from the same recurrence without memory, front to
/// back) passes the cutoff are dropped. The number of stages counts because under 1f1b it decides
/// what the stages in front must hold. O(N^2 R^2 P) time for N blocks, R ranks and P surviving
/// states per cell. Equal inputs give equal answers; among equal optima the one with the fewest
/// stages.
[[nodiscard]] StageAnswer solve_stages(const StageCosts& costs, const FrontBounds& bounds,
                                       const StageSearch& search);

}  // namespace rannc::partition
