#include "comm/half.h"

#include <gtest/gtest.h>

#include <limits>

namespace rannc::comm {
namespace {

template <class Half>
void every_value_survives_float() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half;
    half.bits = static_cast<uint16_t>(bits);
    const auto value = static_cast<float>(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Half(value))));
    } else {
      EXPECT_EQ(Half(value).bits, bits);
    }
  }
}

TEST(Float16, EveryValueSurvivesTheWayThroughFloat) { every_value_survives_float<Float16>(); }
TEST(BFloat16, EveryValueSurvivesTheWayThroughFloat) { every_value_survives_float<BFloat16>(); }

TEST(Float16, RoundsToNearestTiesToEven) {
  // Ten bits of fraction: steps of 2^-10 at 1.
  EXPECT_EQ(Float16(1.0F).bits, 0x3c00);
  EXPECT_EQ(Float16(-2.0F).bits, 0xc000);
  EXPECT_EQ(Float16(1.0F + 0x1p-11F).bits, 0x3c00);
  EXPECT_EQ(Float16(1.0F + 0x3p-11F).bits, 0x3c02);
  EXPECT_EQ(Float16(65504.0F).bits, 0x7bff);
  EXPECT_EQ(Float16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(Float16(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
  EXPECT_EQ(Float16(0x1p-24F).bits, 0x0001);
  EXPECT_EQ(Float16(0x1p-25F).bits, 0x0000);
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  // Seven bits of fraction: steps of 2^-7 at 1.
  EXPECT_EQ(BFloat16(1.0F).bits, 0x3f80);
  EXPECT_EQ(BFloat16(1.0F + 0x1p-8F).bits, 0x3f80);
  EXPECT_EQ(BFloat16(1.0F + 0x3p-8F).bits, 0x3f82);
}

}  // namespace
}  // namespace rannc::comm
