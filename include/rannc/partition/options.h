#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::partition {

/// Nodes of one module (the node of that name, and all whose names begin with it and a dot) on one
/// stage.
struct Pin {
  std::string module;
  int stage = 0;  ///< -1: the last
};

/// For a caller who knows better than section 6 of docs/planner-files.md what a step holds, and has
/// the last word: how much of a device's memory plans of the search may need.
struct Room {
  double added = 1;    ///< by section 6, from 1
  double in_step = 1;  ///< at any time of a step, by a rough account; with more than that `added`
  /// What the fullest rank of a plan holds at most in a step, exactly; empty: unknown. Borders of
  /// the best plan then move until that is no more than the limit, if they can.
  std::function<double(const plan::Plan&)> step_bytes = {};
  double step_limit_bytes = 0;
};

/// What the files do not say.
struct PlannerOptions {
  int max_blocks = 0;        ///< 0: 128, more where memory demands many stages
  bool one_replica = false;  ///< rows interact: every stage has one replica
  std::vector<Pin> pins = {};
  std::vector<std::string> whole = {};  ///< modules that one stage must hold
  /// The search stops at its next candidate when the time is over, and the best plan so far is the
  /// answer; its notes say "cut". 0: no limit.
  double time_limit_s = 0;
  const std::atomic<bool>* stop = nullptr;  ///< the same, when it becomes true
  int threads = 1;                          ///< the answer does not depend on it
  Room room = {};
  bool exactly = true;  ///< small problems, which takes up to seconds; false: as large ones
};

}  // namespace rannc::partition
