#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rannc/ops/backend.h"
#include "rannc/plan/program.h"
#include "rannc/runtime/timeline.h"

namespace rannc::runtime {

/// What an executor knows about its training calls; the calls write it, one after the other.
struct History {
  Times times;
  std::vector<Span> last;  ///< of the last call that has begun
  int64_t last_call = -1;

  /// A point in an accelerator's order that it may not have reached yet.
  struct Mark {
    std::shared_ptr<ops::Moment> moment;
    int64_t call = -1;
    int64_t host_ns = 0;  ///< when it was given to the device
    bool begins = false;  ///< a phase; else the action from the mark before ends here
    int index = -1;
    plan::ActionKind kind = plan::ActionKind::send;
  };
  std::vector<Mark> marks;  ///< that are not in `times` and `last` yet

  /// Takes the marks in: all of them, for which it waits for the device, or without `wait` those
  /// that the device has reached.
  void settle(bool wait);
};

/// Writes down when a call's actions happen: on the host by two readings of clocks for each, half a
/// microsecond; on an accelerator by moments of its order, for which nobody waits.
class Recorder {
 public:
  /// `history` null: nothing is written down.
  Recorder(std::shared_ptr<History> history, int64_t call, size_t actions, c10::Device device);

  /// A phase begins: actions follow each other without a gap from here on.
  void start();
  /// The action that began with the last start() or end() is over.
  void end(int index, plan::ActionKind kind);

 private:
  void mark(bool begins, int index, plan::ActionKind kind);

  std::shared_ptr<History> history_;
  int64_t call_;
  c10::Device device_;
  int64_t begin_ns_ = 0;
  int64_t begin_cpu_ns_ = 0;
};

}  // namespace rannc::runtime
