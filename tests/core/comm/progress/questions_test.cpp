#include "comm/progress/questions.h"

#include <gtest/gtest.h>

namespace rannc::comm {
namespace {

using Kind = PeerState::Kind;

const Waiting kActivation{
    .sends = false, .peer = 2, .what = "activation", .stage = 1, .micro_batch = 3};
const Waiting kGradient{.sends = true, .peer = 1, .what = "gradient"};

/// What the rank of `asked` says to another one.
PeerState say(Questions& asked) {
  Questions other;
  const int32_t question = other.ask(/*peer=*/0);
  const auto unsent = other.take_unsent();
  EXPECT_EQ(unsent.size(), 1u);
  const auto reply = asked.hear(unsent.at(0).second);
  EXPECT_TRUE(reply.has_value());
  EXPECT_FALSE(other.hear(*reply).has_value());  // an answer is not replied to
  EXPECT_TRUE(other.is_answered(question));
  return other.take_answer(question);
}

TEST(Questions, ABlockedRankNamesItsLongestWait) {
  Questions questions;
  EXPECT_EQ(say(questions).kind, Kind::busy);

  const Questions::Wait first = questions.begin_wait(kActivation);
  const Questions::Wait second = questions.begin_wait(kGradient);
  const PeerState state = say(questions);
  EXPECT_EQ(state.kind, Kind::waiting);
  EXPECT_EQ(describe(state.waiting), describe(kActivation));

  questions.end_wait(first);
  EXPECT_EQ(describe(say(questions).waiting), describe(kGradient));
  questions.end_wait(second);
  EXPECT_FALSE(questions.somebody_waits());
  EXPECT_EQ(say(questions).kind, Kind::busy);
}

TEST(Questions, ARankThatHasGivenUpSaysForWhatItWaited) {
  Questions questions;
  const Questions::Wait wait = questions.begin_wait(kGradient);
  questions.give_up(wait);
  questions.end_wait(wait);

  const PeerState state = say(questions);
  EXPECT_EQ(state.kind, Kind::waiting);
  EXPECT_EQ(state.waiting.peer, 1);
  EXPECT_TRUE(state.waiting.sends);
}

TEST(Questions, ARankThatHasLeftSaysSoWhateverItsThreadsWaitFor) {
  Questions questions;
  (void)questions.begin_wait(kGradient);
  questions.leave();

  EXPECT_EQ(say(questions).kind, Kind::left);
}

TEST(Questions, AnAnswerThatHasNotComeIsSilence) {
  Questions questions;
  const int32_t first = questions.ask(/*peer=*/4);
  const int32_t second = questions.ask(/*peer=*/5);

  const auto unsent = questions.take_unsent();
  ASSERT_EQ(unsent.size(), 2u);
  EXPECT_EQ(unsent[1].first, 5);
  EXPECT_TRUE(questions.take_unsent().empty());

  EXPECT_FALSE(questions.hear(answer(second, {Kind::busy, {}})).has_value());
  EXPECT_FALSE(questions.is_answered(first));
  EXPECT_EQ(questions.take_answer(first).kind, Kind::silent);
  EXPECT_EQ(questions.take_answer(second).kind, Kind::busy);
}

}  // namespace
}  // namespace rannc::comm
