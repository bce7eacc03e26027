#include "comm/timeout.h"

#include <gtest/gtest.h>

namespace rannc::comm {
namespace {

using Kind = PeerState::Kind;

const Waiting kActivation{
    .sends = false, .peer = 2, .what = "activation", .stage = 1, .micro_batch = 3};

TEST(ExplainTimeout, NamesThePeerThatWaitsForNobody) {
  EXPECT_EQ(explain_timeout(0, 20, kActivation,
                            [](int) {
                              return PeerState{Kind::busy, {}};
                            }),
            "rank 0 waited 20 s for the activation of micro-batch 3 from rank 2 (stage 1); rank 2 "
            "waits for nobody: it computes, or its script does not make this step.\n"
            "  If the step just takes long, raise comm_timeout_s (now 20)");
}

TEST(ExplainTimeout, FollowsThePeersToTheRoot) {
  const auto ask = [](int rank) {
    if (rank == 2) return PeerState{Kind::waiting, {.sends = true, .peer = 3, .what = "gradient"}};
    return PeerState{Kind::silent, {}};
  };
  EXPECT_EQ(explain_timeout(0, 2.5, kActivation, ask),
            "rank 0 waited 2.5 s for the activation of micro-batch 3 from rank 2 (stage 1); rank 2 "
            "waits to send the gradient to rank 3; rank 3 does not answer: it is stopped or dead");
}

TEST(ExplainTimeout, EndsAtACircle) {
  const auto ask = [](int) {
    return PeerState{Kind::waiting, {.sends = false, .peer = 0, .what = "gradient"}};
  };
  EXPECT_EQ(explain_timeout(0, 1, {.peer = 1, .what = "activation"}, ask),
            "rank 0 waited 1 s for the activation from rank 1; rank 1 waits for the gradient from "
            "rank 0; they wait for each other");
}

TEST(ExplainTimeout, SaysWhenThePeerHasLeft) {
  EXPECT_EQ(explain_timeout(1, 3, {.peer = 0, .what = "plan"},
                            [](int) {
                              return PeerState{Kind::left, {}};
                            }),
            "rank 1 waited 3 s for the plan from rank 0; rank 0 has left: its script ended");
}

TEST(FindDeadlock, WhereARankHasLeft) {
  const auto ask = [](int rank) {
    if (rank == 2) return PeerState{Kind::left, {}};
    return PeerState{Kind::waiting, {.peer = rank + 1, .what = "plan"}, /*arrived=*/5};
  };
  EXPECT_EQ(find_deadlock(0, {.peer = 1, .what = "plan"}, ask), (Deadlock{{0, 5}, {1, 5}, {2, 0}}));
}

TEST(FindDeadlock, WhereRanksWaitForEachOther) {
  const auto ask = [](int) { return PeerState{Kind::waiting, {.peer = 0, .what = "barrier"}}; };
  EXPECT_TRUE(find_deadlock(0, {.peer = 1, .what = "plan"}, ask));
}

// At 50 Mbit/s a start ended with "they wait for each other", told by rank 2, which only looked on:
// between two looks of it the ranks 0 and 1 had got parts of their messages.
TEST(FindDeadlock, OfTwoLooksIsEqualOnlyWhereNothingMoves) {
  int64_t arrived = 0;
  const auto ask = [&](int rank) {
    if (rank == 1) ++arrived;
    return PeerState{Kind::waiting, {.peer = 1 - rank % 2, .what = "link test"}, arrived};
  };
  const Waiting looks_on{.peer = 0, .what = "link test"};
  const auto first = find_deadlock(2, looks_on, ask);
  ASSERT_TRUE(first);
  EXPECT_NE(find_deadlock(2, looks_on, ask), first);
}

TEST(FindDeadlock, NotForARankThatComputes) {
  EXPECT_FALSE(find_deadlock(0, {.peer = 1, .what = "plan"}, [](int) {
    return PeerState{Kind::busy, {}};
  }));
}

TEST(FindDeadlock, NotForARankThatSends) {
  // It may be the message that this rank waits for.
  const auto ask = [](int) {
    return PeerState{Kind::waiting, {.sends = true, .peer = 0, .what = "gradient"}};
  };
  EXPECT_FALSE(find_deadlock(0, {.peer = 1, .what = "gradient"}, ask));
}

}  // namespace
}  // namespace rannc::comm
