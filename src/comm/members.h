#pragma once

#include <algorithm>
#include <span>

#include "rannc/comm/communicator.h"
#include "rannc/util/error.h"

namespace rannc::comm {

/// Index of this rank in `ranks`, which must be ascending, within the job, and hold this rank.
inline size_t index_in(const Communicator& comm, std::span<const int> ranks) {
  const auto me = std::ranges::find(ranks, comm.rank());
  RANNC_CHECK(me != ranks.end(), "rank " + std::to_string(comm.rank()) +
                                     " called a collective over ranks that it is not one of");
  RANNC_CHECK(std::ranges::is_sorted(ranks, std::ranges::less_equal{}) && ranks.front() >= 0 &&
                  ranks.back() < comm.size(),
              "the ranks of a collective are not ascending, or not in the job");
  return static_cast<size_t>(me - ranks.begin());
}

}  // namespace rannc::comm
