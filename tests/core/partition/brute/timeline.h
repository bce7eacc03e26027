#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "partition/brute/tables.h"
#include "rannc/plan/plan.h"

namespace rannc::partition::brute {

constexpr size_t kMostStages = kMostNodes;

/// A schedule without its numbers: stage s runs on group s mod groups.
struct Shape {
  plan::Schedule schedule = plan::Schedule::gpipe;
  int stages = 1;
  int groups = 1;  ///< = stages unless interleaved
  int64_t micro_batches = 1;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

/// A compute action.
struct Step {
  int stage = 0;
  bool forward = true;
  int64_t micro_batch = 0;
};

/// What each group runs, in its order.
[[nodiscard]] std::vector<std::vector<Step>> orders(const Shape& shape);

/// All actions of `shape` so that each comes after all that it may need; and the in-flight counts.
class Orders {
 public:
  struct Order {
    std::vector<Step> steps;
    /// Per group: the counts of micro-batches in flight of its stages, after each forward begins.
    std::vector<std::vector<std::array<int64_t, kMostStages>>> in_flight;
    std::array<int64_t, kMostStages> most_in_flight{};
    std::vector<std::vector<Step>> of_group;  ///< in its order
  };
  const Order& get(const Shape& shape);

 private:
  std::map<Shape, Order> known_;
};

/// Durations of actions, transfers, and the ends of the last backwards that follow.
struct Timeline {
  std::array<double, kMostStages> forward_ns{}, backward_ns{};
  std::array<Mask, kMostStages> forward_from{}, backward_from{};  ///< stages that send to this one
  std::array<std::array<double, kMostStages>, kMostStages> send_forward{}, send_backward{};

  /// Largest end of each stage's last backward.
  [[nodiscard]] std::array<double, kMostStages> run(const Shape& shape,
                                                    const Orders::Order& order) const;
};

}  // namespace rannc::partition::brute
