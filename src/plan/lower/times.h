#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/lower/placement.h"
#include "rannc/ir/graph.h"
#include "rannc/plan/plan.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// A forward or backward on one rank.
struct Computation {
  int action = 0;
  int stage = 0;
  bool forward = true;
  int64_t begin = 0;
  int64_t end = 0;
  int issue_at = 0;  ///< the action after all that belong to the computation before
};

struct RankTimes {
  std::vector<Computation> computations;
  size_t returned_at = 0;  ///< computations before return_outputs: all where there is none
  /// The same as Computation::issue_at, for what follows the last computation before
  /// return_outputs, and the last one.
  int last_issue_at[2] = {0, 0};
};

/// A batch normalisation over the whole batch, whose statistics replicas gather in the midst of a
/// forward or backward.
struct Gather {
  uint32_t node = 0;
  int64_t at = 0;
};

/// When each communication of a call ends where messages are buffered and take no time, in whole
/// numbers. A computation takes at least 1, so what needs another ends later.
struct CallTimes {
  std::vector<int64_t> transfers[2];            ///< [direction][transfer]
  std::vector<std::vector<Gather>> gathers[2];  ///< [direction][stage], in the order of the pass
  std::vector<int64_t> gather_ns[2];            ///< [direction][stage] computed between two of them
  std::vector<int64_t> buffers;                 ///< [stage]; -1: none
  int64_t outputs = -1;                         ///< -1: none
  std::vector<RankTimes> ranks;
};

/// Follows the actions of all ranks. Rows that come from the user are not counted when they are
/// there, but one computation before their use. O(actions).
[[nodiscard]] CallTimes call_times(const Program& program, const Plan& plan, const ir::Graph& graph,
                                   const Placement& placement);

/// When `share` of a computation is over, in parts of kWholeShare; later than its begin.
inline constexpr int64_t kWholeShare = 1 << 16;
[[nodiscard]] int64_t time_at(const Computation& computation, int64_t share);

}  // namespace rannc::plan
