#include "rannc/util/human.h"

#include <gtest/gtest.h>

namespace rannc {
namespace {

TEST(HumanBytes, PicksTheUnitThatKeepsTheNumberBelow1024) {
  EXPECT_EQ(human_bytes(17), "17 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(3.0 * (1 << 30)), "3.0 GiB");
}

TEST(HumanNs, PicksTheUnitThatKeepsTheNumberReadable) {
  EXPECT_EQ(human_ns(7), "7 ns");
  EXPECT_EQ(human_ns(3.4e6), "3.4 ms");
  EXPECT_EQ(human_ns(1.25e9), "1.25 s");
}

TEST(Closest, IsTheNameWithTheFewestEdits) {
  // pipline_num -> pipeline_num: one insertion; partition_num needs more.
  EXPECT_EQ(closest("pipline_num", {"partition_num", "pipeline_num"}), "pipeline_num");
}

}  // namespace
}  // namespace rannc
