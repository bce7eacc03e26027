#pragma once

#include <cstdint>
#include <memory>

namespace rannc::ops {

/// Counts the bytes that c10's CPU allocator hands out in this thread and in the autograd threads
/// it starts, from construction on. A recorder around this one and torch.profiler still count, too.
class MemoryRecorder {
 public:
  MemoryRecorder();
  ~MemoryRecorder();
  [[nodiscard]] int64_t current_bytes() const;  ///< allocated minus freed since construction
  [[nodiscard]] int64_t peak_bytes() const;
  void reset_peak();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rannc::ops
