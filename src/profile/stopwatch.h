#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace rannc::profile {

/// Times calls on a device. On a CPU with one computing thread it counts the time that this thread
/// runs, so that what else the machine does meanwhile does not matter; elsewhere the time that
/// passes, until the device has done everything.
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

}  // namespace rannc::profile
