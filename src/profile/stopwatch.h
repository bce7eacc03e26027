#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "rannc/ops/backend.h"

namespace rannc::profile {

/// Times calls on a device. On a CPU with one computing thread it counts the time that this thread
/// runs, so that what else the machine does meanwhile does not matter; elsewhere the time that
/// passes, until the device has done everything. For single calls of an accelerator this is too
/// much: see Train.
class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device);

  template <class Call>
  [[nodiscard]] int64_t time_ns(Call&& call) const {
    const int64_t begin = now_ns();
    call();
    const int64_t passed = now_ns() - begin - reading_ns_;
    return passed > 0 ? passed : 0;
  }

 private:
  [[nodiscard]] int64_t now_ns() const;

  c10::Device device_;
  bool thread_time_;
  int64_t reading_ns_ = 0;  ///< what reading the clock takes
};

/// Calls that are given to an accelerator one after the other, without waiting in between, timed by
/// two clocks: events on its stream say what it takes itself, and the host's clock what it takes to
/// give it the work. The device is kept busy first, so that it does not wait for the host; a call
/// for which it did wait says so. Where its backend has no timed events, the device is waited for
/// before and after each call.
class Train {
 public:
  /// `cache_bytes`: of the device's cache, if it is known.
  Train(c10::Device device, int64_t cache_bytes);

  /// Gives the device so much to do that it is busy for about `ns`; nothing else is in its cache
  /// afterwards.
  void keep_busy(int64_t ns);
  template <class Call>
  void time(Call&& call) {
    moments_.push_back(now());
    const int64_t begin = host_ns();
    call();
    host_.push_back(host_ns() - begin);
    waited_.push_back(timed_events_ && moments_.back().is_past());
    moments_.push_back(now());
  }
  /// Waits for the device once, and gives the times of all calls; forgets them.
  struct Times {
    std::vector<int64_t> device_ns;
    std::vector<int64_t> host_ns;
    /// [call] the device was done with everything before while the host still gave it this call:
    /// its time may hold a wait.
    std::vector<bool> waited;
  };
  [[nodiscard]] Times end();

 private:
  [[nodiscard]] ops::Moment now() const;
  [[nodiscard]] static int64_t host_ns();

  c10::Device device_;
  bool timed_events_;
  at::Tensor filler_;      ///< worked on to keep the device busy
  int64_t filler_ns_ = 0;  ///< what that takes once
  std::vector<ops::Moment> moments_;
  std::vector<int64_t> host_;
  std::vector<bool> waited_;
};

}  // namespace rannc::profile
