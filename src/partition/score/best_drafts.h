#pragma once

#include <map>
#include <string>
#include <vector>

#include "partition/problem/draft.h"
#include "partition/score/assessor.h"

namespace rannc::partition {

/// A draft with its figures.
struct Scored {
  Draft draft;
  int columns = 1;  ///< of its layout; 0: irregular
  Assessment figures;
};

/// By what a user sees: whether it fits, time (to the nanosecond), fewer stages, fewer
/// micro-batches; then by the draft itself, so that the order of finding does not matter.
[[nodiscard]] bool better(const Scored& a, const Scored& b);

/// In words for people: its number of stages, its schedule, and the like.
[[nodiscard]] std::vector<std::string> kinds_of(const Draft& draft);

/// The best draft that a search has seen, the best of each kind, and the best few to work on.
class Best {
 public:
  explicit Best(size_t keep) : keep_(keep) {}
  void add(const Scored& scored);
  void add(const Best& other);

  [[nodiscard]] bool empty() const { return top_.empty(); }
  [[nodiscard]] const Scored& winner() const { return top_.front(); }
  /// Infinite when nothing fits yet.
  [[nodiscard]] double iteration_ns() const;
  [[nodiscard]] const std::vector<Scored>& top() const { return top_; }
  [[nodiscard]] const std::map<std::string, Scored>& kinds() const { return kinds_; }

 private:
  void add_to_top(const Scored& scored);

  size_t keep_;
  std::vector<Scored> top_;  // best first; fits; at most keep_, of each arrangement the best
  std::map<std::string, Scored> kinds_;
};

}  // namespace rannc::partition
