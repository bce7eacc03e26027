#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rannc/plan/program.h"
#include "rannc/runtime/timeline.h"

namespace rannc::runtime {

/// What an executor knows about its training calls; the calls write it, one after the other.
struct History {
  Times times;
  std::vector<Span> last;  ///< of the last call that has begun
  int64_t last_call = -1;
};

/// Writes down when a call's actions happen: two readings of clocks for each, half a microsecond.
class Recorder {
 public:
  /// `history` null: nothing is written down.
  Recorder(std::shared_ptr<History> history, int64_t call, size_t actions);

  /// A phase begins: actions follow each other without a gap from here on.
  void start();
  /// The action that began with the last start() or end() is over.
  void end(int index, plan::ActionKind kind);

 private:
  std::shared_ptr<History> history_;
  int64_t call_;
  int64_t begin_ns_ = 0;
  int64_t begin_cpu_ns_ = 0;
};

}  // namespace rannc::runtime
