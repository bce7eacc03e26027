#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace rannc::partition::testing {

/// The same numbers with every standard library, unlike std::uniform_int_distribution.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15u + 1) {}
  double real(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  int draw(int low, int high) {
    return std::min(high, static_cast<int>(real(low, static_cast<double>(high) + 1)));
  }
  bool chance(double probability) { return real(0, 1) < probability; }
  /// Of equal probability in each power of ten.
  double magnitude(double low, double high) {
    return std::exp(real(std::log(low), std::log(high)));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace rannc::partition::testing
