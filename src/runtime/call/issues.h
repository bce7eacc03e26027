#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "rannc/plan/program.h"

namespace rannc::runtime {

/// Goes through a rank's part of Program::order while it walks the actions of one phase (up to
/// return_outputs, or from there on), and has each communication issued at its place: for
/// transports where messages have no tags and block. Used by the thread that computes, and by
/// autograd's while that waits for it.
class Issues {
 public:
  struct Ways {
    /// Statistics are issued here only where nobody has reached them: see reach_statistics().
    std::function<void(const plan::Communication&)> issue;
    /// Of a bucket: whether it can be issued inside of a backward.
    std::function<bool(const plan::Communication&)> is_complete;
    /// Takes the memory of a receive, before the computation that precedes its issue.
    std::function<void(const plan::Communication&)> reserve;
  };
  /// The phase of the actions [begin, end); `program` must outlive it.
  Issues(const plan::Program& program, plan::Rank rank, size_t begin, size_t end, Ways ways);

  /// Issues what comes before this action; or, with the end of the phase, all that is left.
  void before(size_t action);

  /// The computation `action` begins. What is issued before the next one takes its memory now, so
  /// that a message need not wait for this computation; and what is inside can start.
  void enter(size_t action);
  /// Issues what is inside and has come, in order. Nothing outside of a computation.
  void go_on();
  /// The computation comes to the statistics of `node`: all that precedes them is issued, and they
  /// themselves by the caller.
  void reach_statistics(int node);
  /// It has ended: issues all that is left inside.
  void leave();

 private:
  [[nodiscard]] const plan::Communication& communication(size_t issue) const;
  [[nodiscard]] bool is_inside(size_t issue) const;
  void issue_next();

  const plan::Program& program_;
  const std::vector<plan::Action>& actions_;   // of the rank
  const std::span<const plan::Issue> issues_;  // of the phase
  const size_t end_;
  const Ways ways_;
  size_t next_ = 0;
  bool issuing_ = false;  // what is issued may complete what comes after it
  int computation_ = -1;  // that runs; -1: none
};

}  // namespace rannc::runtime
