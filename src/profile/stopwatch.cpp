#include "profile/stopwatch.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <utility>

#include "rannc/util/human.h"
#include "rannc/util/log.h"

namespace rannc::profile {

Stopwatch::Stopwatch(c10::Device device)
    : device_(device), thread_time_(device.is_cpu() && at::get_num_threads() == 1) {
  /// Readings of a clock of which the shortest is what a reading takes.
  /// tuned by: a safety margin: one of so many readings is not disturbed.
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
  ops::wait_for(device_);
  timespec now{};
  clock_gettime(thread_time_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

namespace {

/// The least bytes of what keeps a device busy, how many of its caches they fill, and the most
/// times that they are worked on.
/// tuned by: no measurement is known.
/// without it: the device waits for the host between short calls, and the time of the host counts
/// as the device's; with less than a cache, what it is to fill can remain in it, and working on
/// it takes no longer than issuing that; with more, profiling takes longer.
constexpr int64_t kLeastFillerBytes = int64_t{4} << 20;
constexpr int64_t kFilledCaches = 2;
constexpr int64_t kMostFillers = 256;

at::Tensor make_filler(c10::Device device, int64_t bytes) {
  return at::zeros({bytes / static_cast<int64_t>(sizeof(float))},
                   at::TensorOptions().dtype(at::kFloat).device(device));
}

at::Tensor make_filler_of_caches(c10::Device device, int64_t cache_bytes) {
  const int64_t bytes = std::max(kLeastFillerBytes, kFilledCaches * cache_bytes);
  try {
    return make_filler(device, bytes);
  } catch (const c10::OutOfMemoryError&) {
    log::warn("profile", c10::str(device, " has no room for ", human_bytes(bytes),
                                  ", twice what its cache holds: operators are timed with operands "
                                  "that may be in it"));
  }
  return make_filler(device, kLeastFillerBytes);
}

}  // namespace

Train::Train(c10::Device device, int64_t cache_bytes)
    : device_(device), timed_events_(ops::backend_of(device).timed_events) {
  filler_ = make_filler_of_caches(device, cache_bytes);
  filler_.add_(1);  // what is compiled or loaded at the first use is not timed
  for (int i = 0; i < 3; ++i) time([&] { filler_.add_(1); });
  const std::vector<int64_t> times = end().device_ns;
  filler_ns_ = std::max<int64_t>(*std::ranges::min_element(times), 1);
}

void Train::keep_busy(int64_t ns) {
  const int64_t count = std::min(ns / filler_ns_ + 1, kMostFillers);
  for (int64_t i = 0; i < count; ++i) filler_.add_(1);
}

Train::Times Train::end() {
  Times times;
  if (!moments_.empty()) moments_.back().wait();
  for (size_t i = 0; i + 1 < moments_.size(); i += 2) {
    times.device_ns.push_back(moments_[i].ns_until(moments_[i + 1]));
  }
  times.host_ns = std::exchange(host_, {});
  times.waited = std::exchange(waited_, {});
  moments_.clear();
  return times;
}

ops::Moment Train::now() const {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  if (!timed_events_) ops::wait_for(stream);
  return ops::Moment(stream);
}

int64_t Train::host_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace rannc::profile
