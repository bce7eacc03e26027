#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace rannc::ops {

/// Counts the bytes that torch's allocators hand out in this thread and in the autograd threads
/// it starts, from construction on. A recorder around this one and torch.profiler still count, too.
class MemoryRecorder {
 public:
  /// `device`: whose memory counts; nothing: all memory.
  explicit MemoryRecorder(std::optional<c10::Device> device = std::nullopt);
  ~MemoryRecorder();
  [[nodiscard]] int64_t current_bytes() const;  ///< allocated minus freed since construction
  [[nodiscard]] int64_t peak_bytes() const;
  void reset_peak();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rannc::ops
