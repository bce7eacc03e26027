#pragma once

#include <functional>

namespace rannc::partition {

/// How far a search is. Each part of it tells how far it is itself, and the listener hears the
/// share of the whole, from 0 to 1, on the thread that called the planner.
///
/// Shares are guesses of time, made for a bar; no plan depends on them.
class Progress {
 public:
  using Listener = std::function<void(double)>;

  /// Of a search that nobody listens to, or of all that `listener` hears.
  explicit Progress(const Listener* listener = nullptr) : Progress(listener, 0, 1) {}

  /// What lies between two shares of this.
  [[nodiscard]] Progress part(double from, double to) const {
    return {listener_, whole(from), whole(to)};
  }

  void tell(double share) const {
    if (listener_ != nullptr) (*listener_)(whole(share));
  }

 private:
  Progress(const Listener* listener, double from, double to)
      : listener_(listener), from_(from), to_(to) {}

  [[nodiscard]] double whole(double share) const { return from_ + share * (to_ - from_); }

  const Listener* listener_;
  double from_, to_;
};

}  // namespace rannc::partition
