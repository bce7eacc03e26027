#pragma once

#include <atomic>
#include <chrono>

namespace rannc::partition {

/// Says when a search has to end with what it has.
class Stop {
 public:
  Stop(double limit_s, const std::atomic<bool>* flag)
      : limited_(limit_s > 0),
        end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(limited_ ? limit_s : 0))),
        flag_(flag) {}

  /// Once true, it stays true.
  [[nodiscard]] bool now() {
    if (stopped_.load(std::memory_order_relaxed)) return true;
    if ((flag_ != nullptr && flag_->load()) ||
        (limited_ && std::chrono::steady_clock::now() >= end_)) {
      stopped_ = true;
    }
    return stopped_;
  }
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  bool limited_;
  std::chrono::steady_clock::time_point end_;
  const std::atomic<bool>* flag_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace rannc::partition
