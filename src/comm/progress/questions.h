#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/progress/control.h"
#include "comm/timeout.h"

namespace rannc::comm {

/// "Why do you not come?": what this rank asks others, and what it says when it is asked.
///
/// It is data that threads share: callers wait and ask, the thread that moves the messages sends
/// and answers. Every function is called with the mutex of Progress held, and none blocks.
class Questions {
 public:
  using Wait = std::list<Waiting>::const_iterator;

  /// A thread is blocked from now on, until end_wait().
  [[nodiscard]] Wait begin_wait(Waiting waiting);
  void end_wait(Wait wait) { waits_.erase(wait); }
  [[nodiscard]] bool somebody_waits() const { return !waits_.empty(); }
  /// Others may ask between this and the end of the job.
  void give_up(Wait wait) { gave_up_ = *wait; }
  void leave() { left_ = true; }

  /// A question to `peer` is to be sent; returns its number.
  [[nodiscard]] int32_t ask(int peer);
  [[nodiscard]] bool is_answered(int32_t question) const { return answers_.contains(question); }
  /// Silent where no answer has come.
  [[nodiscard]] PeerState take_answer(int32_t question);

  /// What is to be sent to whom.
  [[nodiscard]] std::vector<std::pair<int, ControlMessage>> take_unsent();
  /// What has come from another rank: the reply, where it was a question.
  [[nodiscard]] std::optional<ControlMessage> hear(const ControlMessage& message);

  /// A part of a message has come, or has gone.
  void count_arrival() { ++arrived_; }
  [[nodiscard]] PeerState own_state() const;

 private:
  std::list<Waiting> waits_;  // one per blocked thread, the longest first
  std::optional<Waiting> gave_up_;
  bool left_ = false;
  int64_t arrived_ = 0;
  int32_t questions_ = 0;
  std::vector<std::pair<int, ControlMessage>> unsent_;
  std::map<int32_t, PeerState> answers_;
};

}  // namespace rannc::comm
