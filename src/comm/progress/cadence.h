#pragma once

#include <chrono>

namespace rannc::comm {

/// How often the thread that moves the messages looks for them. It never spins or yields, because
/// the cores belong to the computation. The thread's own.
class Cadence {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Load {
    idle,       ///< nothing under way: only questions of other ranks can come
    relaxed,    ///< the messages move by themselves, as soon as they are needed
    attentive,  ///< somebody might be blocked at the other end
    blocked,    ///< a thread of this rank is blocked
  };

  /// Something has begun or landed.
  void event();
  /// The time until the next look; zero: it comes at once.
  [[nodiscard]] Clock::duration nap(Load load);

 private:
  int burst_ = 0;  // looks without sleep that are left
  Clock::time_point last_event_;
};

}  // namespace rannc::comm
