#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// The 16-bit floating types of tensors. GCC 12 has no arithmetic type for either in C++.
namespace rannc::comm {

struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  /// Rounds to nearest, ties to even.
  explicit Float16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>((word >> 16) & 0x8000U);
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) {
      bits = sign | 0x7e00U;
    } else if (magnitude >= 65520.0F) {  // half way between the largest value and 2^16
      bits = sign | 0x7c00U;
    } else if (magnitude < 0x1p-14F) {
      // Below the normal numbers: a multiple of 2^-24. 1024 of them are the smallest normal number.
      bits = sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24F));
    } else {
      const uint32_t positive = word & 0x7fffffffU;
      const uint32_t rounded = positive + 0xfffU + ((positive >> 13) & 1U);
      bits = sign | static_cast<uint16_t>((rounded >> 13) - (112U << 10));
    }
  }

  explicit operator float() const {
    const uint32_t sign = (bits & 0x8000U) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fU;
    const uint32_t fraction = bits & 0x3ffU;
    if (exponent == 0) {
      const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
      return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t wide = exponent == 0x1fU ? 0xffU : exponent + 112U;
    return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
  }
};

struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  /// Rounds to nearest, ties to even.
  explicit BFloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    bits = std::isnan(value) ? 0x7fc0U
                             : static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }

  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

}  // namespace rannc::comm
