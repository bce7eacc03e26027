#pragma once

#include <array>
#include <vector>

#include "partition/brute/tables.h"
#include "partition/brute/timeline.h"
#include "rannc/cost/cluster.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition::brute {

/// A plan in few numbers. Ranks of a group ascend: first those on host 0, then those on host 1.
struct Choice {
  Shape shape;
  std::vector<Mask> stages;
  std::array<int, kMostRanks> replicas{};       ///< per group of ranks
  std::array<int, kMostRanks> on_first_host{};  ///< per group, of its replicas
  uint32_t recompute = 0;                       ///< bit s: stage s
};

/// Time and memory of choices. At most two hosts.
class Judge {
 public:
  Judge(const cost::GraphProfile& profile, const cost::Cluster& cluster, const Request& request);

  Tables& tables() { return tables_; }
  const Orders::Order& order(const Shape& shape) { return orders_.get(shape); }

  [[nodiscard]] int64_t rows(int64_t micro_batches, int replicas) const;
  /// Memory of one rank of `group`.
  [[nodiscard]] double peak_bytes(const Choice& choice, int group);
  /// The same by section 7.
  [[nodiscard]] double fullest_moment(const Choice& choice, int group);
  [[nodiscard]] double iteration_ns(const Choice& choice);

  /// Never above iteration_ns(), wherever the replicas are; ignores `on_first_host`. Cheap: no
  /// stage ends before the busiest path to it, its work, and the path back.
  [[nodiscard]] double work_bound(const Choice& choice);
  /// The same from a simulation whose transfers and reductions take their best possible time.
  [[nodiscard]] double simulated_bound(const Choice& choice);

  /// Calls use(choice) for each way to put the replicas on hosts, of which mirrored ones are one.
  template <class Use>
  void for_each_placement(Choice choice, Use use) const {
    const bool mirrored = near_room() == far_room() && cluster_.speed_of(0) == cluster_.fastest() &&
                          (cluster_.hosts == 1 || cluster_.speed_of(1) == cluster_.fastest());
    place(choice, 0, 0, 0, mirrored, use);
  }

  [[nodiscard]] plan::Plan to_plan(const Choice& choice) const;

 private:
  struct Ring {
    double bandwidth_bytes_per_s = 1, latency_ns = 0;
  };
  using Ends = std::array<double, kMostStages>;

  [[nodiscard]] int near_room() const { return cluster_.devices_of(0); }
  [[nodiscard]] int far_room() const { return cluster_.hosts > 1 ? cluster_.devices_of(1) : 0; }

  template <class Use>
  void place(Choice& choice, int group, int first, int second, bool mirrored, Use& use) const {
    if (group == choice.shape.groups) {
      use(const_cast<const Choice&>(choice));
      return;
    }
    const auto g = static_cast<size_t>(group);
    const int replicas = choice.replicas[g];
    for (int a = replicas; a >= 0; --a) {
      const int b = replicas - a;
      if (first + a > near_room() || second + b > far_room()) continue;
      if (mirrored && a < b) continue;
      choice.on_first_host[g] = a;
      place(choice, group + 1, first + a, second + b, mirrored && a == b, use);
    }
  }

  Timeline compute(const Choice& choice, bool placed);
  [[nodiscard]] double speed(const Choice& choice, size_t group, bool placed) const;
  [[nodiscard]] double transfer_ns(const Choice& choice, size_t from, size_t to, double per_row,
                                   double fixed) const;
  [[nodiscard]] double least_transfer_ns(const Choice& choice, size_t from, size_t to,
                                         double per_row, double fixed) const;
  template <class RingOf>
  double reduce(const Choice& choice, const Ends& ends, bool one_after_another, RingOf ring_of);
  [[nodiscard]] double least_ring_ns(int replicas, double bytes) const;
  double bound_after(const Choice& choice, const Ends& ends);

  const cost::GraphProfile& profile_;
  const cost::Cluster& cluster_;
  const Request& request_;
  Tables tables_;
  Orders orders_;
  std::vector<Tables::Tied> tied_;
};

}  // namespace rannc::partition::brute
