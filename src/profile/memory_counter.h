#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <memory>

namespace rannc::profile {

/// Bytes that c10 allocates, minus those it frees, while an object of this class lives, in this
/// thread and in the autograd threads it wakes.
class MemoryCounter {
 public:
  MemoryCounter() : guard_(c10::DebugInfoKind::PROFILER_STATE, state_) {}

  [[nodiscard]] int64_t current_bytes() const { return state_->current.load(); }
  [[nodiscard]] int64_t peak_bytes() const { return state_->peak.load(); }

 private:
  struct State final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      const int64_t now = current += bytes;
      int64_t most = peak;
      while (now > most && !peak.compare_exchange_weak(most, now)) {
      }
    }
    bool memoryProfilingEnabled() const override { return true; }

    std::atomic<int64_t> current{0};
    std::atomic<int64_t> peak{0};
  };

  std::shared_ptr<State> state_ = std::make_shared<State>();
  c10::DebugInfoGuard guard_;
};

}  // namespace rannc::profile
