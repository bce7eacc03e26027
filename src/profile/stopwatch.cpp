#include "profile/stopwatch.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <ctime>
#include <limits>

namespace rannc::profile {

Stopwatch::Stopwatch(c10::Device device)
    : device_(device), thread_time_(device.is_cpu() && at::get_num_threads() == 1) {
  /// Readings of a clock of which the shortest is what a reading takes.
  /// tuned by: no measurement is known.
  /// without it: short operators are timed too long by the time of two readings.
  constexpr int kReadings = 16;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kReadings; ++i) {
    const int64_t begin = now_ns();
    least = std::min(least, now_ns() - begin);
  }
  reading_ns_ = least;
}

int64_t Stopwatch::now_ns() const {
  if (!device_.is_cpu()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  timespec now{};
  clock_gettime(thread_time_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace rannc::profile
