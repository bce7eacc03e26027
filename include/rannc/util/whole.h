#pragma once

#include <cmath>
#include <cstdint>

namespace rannc {

/// The nearest integer; the largest one for times and bytes that no integer holds.
[[nodiscard]] inline int64_t whole(double value) {
  return value < 9.2e18 ? std::llround(value) : INT64_MAX;
}

}  // namespace rannc
