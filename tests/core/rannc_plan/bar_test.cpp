#include "rannc_plan/bar.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace rannc::rannc_plan {
namespace {

using std::chrono::milliseconds;

constexpr Pace kAtOnce{milliseconds(0), milliseconds(0), milliseconds(0)};

TEST(Bar, SaysNothingOfWhatIsQuick) {
  std::ostringstream err;
  Bar bar("planning", err, /*moves=*/true);
  bar.at(0.5);
  bar.clear();
  EXPECT_EQ(err.str(), "");
}

TEST(Bar, MovesOnATerminalAndGoesAway) {
  std::ostringstream err;
  Bar bar("planning", err, /*moves=*/true, kAtOnce);
  bar.at(0.5);
  // 80 columns less 8 and 30 are 42 for the bar, half of which is full.
  EXPECT_EQ(err.str(), "\r\x1b[Kplanning [" + std::string(21, '#') + std::string(21, '.') +
                           "]  50 %, about 0 s left");
  EXPECT_LE(err.str().size() - 4, 80u);
  bar.clear();
  EXPECT_TRUE(err.str().ends_with("left\r\x1b[K"));
}

TEST(Bar, IsSingleLinesElsewhere) {
  std::ostringstream err;
  Bar bar("planning", err, /*moves=*/false, kAtOnce);
  bar.at(0.25);
  bar.at(1);
  bar.clear();
  EXPECT_EQ(err.str(), "planning: 25 %, about 0 s left\nplanning: 100 %, about 0 s left\n");
}

}  // namespace
}  // namespace rannc::rannc_plan
