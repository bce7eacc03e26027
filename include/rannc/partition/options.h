#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace rannc::partition {

/// Nodes of one module (the node of that name, and all whose names begin with it and a dot) on one
/// stage.
struct Pin {
  std::string module;
  int stage = 0;  ///< -1: the last
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
  /// Hears how far the search is, a share from 0 to 1, on the calling thread; the same with any
  /// other answer. Empty: nobody.
  std::function<void(double)> progress = {};
  bool exactly = true;  ///< small problems, which takes up to seconds; false: as large ones
};

}  // namespace rannc::partition
