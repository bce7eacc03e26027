#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rannc/plan/program.h"

// Timelines as events of the Trace Event Format, which chrome://tracing and Perfetto open
// (Google, "Trace Event Format", the JSON Array Format). Texts are events, separated by commas
// without one at the end, for whoever puts them into one array.
namespace rannc::plan {

/// "forward of stage 0, micro-batch 3"; "send to rank 2: stage 0 to 1, micro-batch 3".
[[nodiscard]] std::string in_words(const Program& program, const Action& action);

/// An action as it happened, or as it is foretold, on a clock that all ranks share.
struct TimedAction {
  int action = -1;  ///< index into Program::actions[rank]; -1: the end of a phase
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// One rank's actions of one step, as a process with one thread, which is named in the first step
/// only. Arrows go from each message's send to its receive; the micro-batches that the rank has
/// begun and not yet released are a counter. `foretold`: the process is another one than that of
/// what happened. Events are ordered by time.
[[nodiscard]] std::string trace_events(const Program& program, Rank rank,
                                       const std::vector<TimedAction>& actions, int64_t step,
                                       bool foretold = false);

/// The same of all ranks, as the plan's predictions foretell them, from `begin_ns` on. Computations
/// only where a stage has no prediction; messages as the plan's notes say.
[[nodiscard]] std::string foretold_events(const Plan& plan, const Program& program,
                                          int64_t begin_ns, int64_t step);

}  // namespace rannc::plan
