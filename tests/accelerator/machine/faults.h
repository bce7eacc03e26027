#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace rannc::standin {

enum class Fault { allocation, copy, pinned };

/// What a test asks to go wrong, or to go slowly.
class Faults {
 public:
  /// The `nth` from now on fails, 1 being the next. 0: none does.
  void plan(Fault fault, int nth) { left(fault) = nth; }
  /// Called once for each; true: this one fails.
  [[nodiscard]] bool due(Fault fault) {
    std::atomic<int>& count = left(fault);
    int now = count;
    while (now > 0 && !count.compare_exchange_weak(now, now - 1)) {
    }
    return now == 1;
  }

  /// What a copy between host and device, or two devices, takes at least. 0 bytes_per_s: nothing.
  void slow_links(double latency_us, double bytes_per_s) {
    latency_us_ = latency_us;
    bytes_per_s_ = bytes_per_s;
  }
  void cross_link(int64_t bytes) const {
    const double rate = bytes_per_s_;
    const double us = latency_us_ + (rate > 0 ? 1e6 * static_cast<double>(bytes) / rate : 0);
    if (us > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(us));
  }

 private:
  std::atomic<int>& left(Fault fault) { return left_.at(static_cast<size_t>(fault)); }
  std::array<std::atomic<int>, 3> left_{};
  std::atomic<double> latency_us_ = 0;
  std::atomic<double> bytes_per_s_ = 0;
};

}  // namespace rannc::standin
