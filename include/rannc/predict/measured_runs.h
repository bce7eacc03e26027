#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rannc/plan/program.h"
#include "rannc/predict/step_time.h"

namespace rannc::predict {

/// An action of a rank in one run; nanoseconds.
struct RecordedAction {
  size_t action = 0;     ///< index into Program::actions of the rank
  double passed_ns = 0;  ///< by the clock
  double cpu_ns = 0;     ///< of the computing thread
  double end_ns = 0;     ///< by the clock of the rank's host
};

/// What one rank did in a run of a training Program.
struct RecordedRun {
  std::string host = {};
  double seconds = 0;           ///< from its begin to its end
  double paging_seconds = 0;    ///< of which the system has taken so much for new memory
  double around_ns = 0;         ///< of the computing thread, around the actions
  double compute_ns = 0;        ///< by the clock, of the computing actions
  double optimizer_ns = 0;      ///< of a step of the optimizer, or of the part of it that was tried
  double optimizer_factor = 0;  ///< how much longer the real step takes
  bool one_thread = true;       ///< computes in each action
  std::vector<RecordedAction> actions = {};
};

/// What runs of a plan say about its steps. [rank] unless another size is given.
struct MeasuredRuns {
  std::vector<std::vector<MeasuredAction>> actions = {};  ///< [rank][action] of the Program
  std::vector<double> around_ns = {};
  std::vector<double> compute_ns = {};  ///< as recorded, without the time for new memory
  std::vector<double> optimizer_ns = {};
  std::vector<double> optimizer_factor = {};
  /// Of a run, from the first rank's begin to the last one's end, without the time for new memory;
  /// the shortest counts the first run, too.
  double run_ns = 0, shortest_ns = 0;
  double all_ns = 0;  ///< of all runs together
};

/// Summarises `runs`, [run][rank], at least one, of `program`. The first one warms up, so it counts
/// only where it is the only one.
///
/// Where one thread computes, its own time counts: the time that passes depends on who else needs
/// the core, and that is for step_time() to say. Later steps do not ask for new memory. Equal
/// actions (those of one stage, with equal rows, on replicas of one host) count with their median.
/// Where a receiver waited for a message, the time on its way counts, too.
[[nodiscard]] MeasuredRuns summarize(const plan::Program& program,
                                     std::vector<std::vector<RecordedRun>> runs);

}  // namespace rannc::predict
