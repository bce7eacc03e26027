#pragma once

#include <span>

#include "rannc/plan/program.h"

namespace rannc::plan {

/// A rank posts a receive while this many computations lie before its use, so that a message moves
/// during the computation before, and only one micro-batch more than needed takes memory.
/// tuned by: a rule of docs/planner-files.md (section 7), whose account of memory counts what is
/// received so: other evaluators follow it.
/// without it: with 1, a message that a rank has not asked for waits for the end of a computation;
/// with more, each micro-batch ahead takes the memory of its message.
inline constexpr int kComputationsAhead = 2;

[[nodiscard]] inline bool is_computation(const Action& action) {
  return action.kind == ActionKind::forward || action.kind == ActionKind::backward;
}

/// For so many computations of a rank after the one that makes it, what it sends may not be gone,
/// however late its receiver is. That one posts it when the computation two before its use has
/// ended, and with `one_f_one_b` the gradient for the sender's next backward, which comes next,
/// says so. Interleaved, a rank begins with two forwards more than the next rank, not one, so what
/// says so is the backward after that one; but of two groups, which are each other's next. Under
/// gpipe no gradient says anything: ranks that follow each other are taken to be as fast as each
/// other.
[[nodiscard]] constexpr int computations_until_sent(Schedule schedule, int groups) {
  if (schedule != Schedule::interleaved) return 1;
  return groups == 2 ? 2 : 3;
}

/// Which receives a rank posts when, as it goes through the actions of one phase of a call (up to
/// the outputs, or from there on): the runtime does so, and predictions of a step's memory count
/// it.
class PostedAhead {
 public:
  explicit PostedAhead(std::span<const Action> actions) : actions_(actions) {}

  /// To be called before each action, in order: `post(action)` for those to be posted by then.
  template <class Post>
  void before(size_t action, Post post) {
    if (action > 0 && is_computation(actions_[action - 1])) --ahead_;
    for (; posted_ < actions_.size() && ahead_ < kComputationsAhead; ++posted_) {
      if (actions_[posted_].kind == ActionKind::receive) post(actions_[posted_]);
      if (is_computation(actions_[posted_])) ++ahead_;
    }
  }

 private:
  std::span<const Action> actions_;
  size_t posted_ = 0;
  int ahead_ = 0;  // computations that are posted and not run
};

}  // namespace rannc::plan
