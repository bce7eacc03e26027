#pragma once

#include <algorithm>
#include <vector>

#include "rannc/plan/simulate.h"
#include "rannc/util/error.h"

namespace rannc::plan {

/// Durations of all that the Program does.
inline void check_durations(const Program& program, const Durations& durations) {
  const size_t stages = program.stage_ranks.size();
  const auto is_square = [&](const std::vector<std::vector<double>>& matrix) {
    return matrix.size() == stages &&
           std::ranges::all_of(matrix, [&](const auto& row) { return row.size() == stages; });
  };
  RANNC_CHECK(durations.forward_ns.size() == stages, "a forward time per stage");
  RANNC_CHECK(!program.training || durations.backward_ns.size() == stages,
              "a backward time per stage");
  RANNC_CHECK(is_square(durations.transfer_ns), "a transfer time per pair of stages");
  RANNC_CHECK(durations.transfer_back_ns.empty() || is_square(durations.transfer_back_ns),
              "a backward transfer time per pair of stages");
  RANNC_CHECK(durations.reduce_ns.size() == program.reductions.size(), "a time per reduction");
  const auto is_by_action = [&](const std::vector<std::vector<double>>& times) {
    return times.empty() ||
           std::ranges::equal(times, program.actions, {}, &std::vector<double>::size,
                              &std::vector<Action>::size);
  };
  RANNC_CHECK(is_by_action(durations.computed_ns), "a time per action");
  RANNC_CHECK(is_by_action(durations.issued_ns), "a time of the host per action");
  RANNC_CHECK(std::ranges::all_of(durations.message_ns,
                                  [&](const std::vector<double>& times) {
                                    return times.empty() ||
                                           times.size() == program.transfers.size();
                                  }),
              "a time per transfer");
}

}  // namespace rannc::plan
