#include "comm/progress/cadence.h"

#include <gtest/gtest.h>

namespace rannc::comm {
namespace {

using Load = Cadence::Load;

TEST(Cadence, SleepsLessTheMoreSomebodyNeedsIt) {
  Cadence cadence;
  EXPECT_GT(cadence.nap(Load::idle), cadence.nap(Load::relaxed));
  EXPECT_GT(cadence.nap(Load::relaxed), cadence.nap(Load::attentive));
  EXPECT_GT(cadence.nap(Load::attentive).count(), 0);
}

TEST(Cadence, LooksAtOnceForAWhileWhenSomebodyComesToWait) {
  Cadence cadence;
  cadence.event();
  (void)cadence.nap(Load::relaxed);  // nobody is blocked yet: this takes nothing of the burst

  int at_once = 0;
  while (cadence.nap(Load::blocked).count() == 0) ++at_once;
  EXPECT_EQ(at_once, 20);
  cadence.event();
  EXPECT_EQ(cadence.nap(Load::blocked).count(), 0);
}

}  // namespace
}  // namespace rannc::comm
