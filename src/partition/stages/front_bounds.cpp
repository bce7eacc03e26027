#include <algorithm>
#include <limits>

#include "partition/stages/stage_solver.h"

namespace rannc::partition {
namespace {

/// The smaller of both link classes in each figure, on the fastest hosts.
StageTime fastest(const StageCosts& costs, int first, int last, int replicas, bool hosts_differ) {
  const double slowdown = costs.least_slowdown();
  StageTime time = costs.time(first, last, replicas, {.slowdown = slowdown});
  if (!hosts_differ) return time;
  const StageTime far = costs.time(first, last, replicas, {true, true, true, slowdown});
  time.forward_ns = std::min(time.forward_ns, far.forward_ns);
  time.backward_ns = std::min(time.backward_ns, far.backward_ns);
  time.transfer_ns = std::min(time.transfer_ns, far.transfer_ns);
  return time;
}

}  // namespace

FrontBounds::FrontBounds(const StageCosts& costs)
    : stride_(static_cast<size_t>(costs.ranks()) + 1),
      bounds_(static_cast<size_t>(costs.ranges().end() + 1) * stride_) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool hosts_differ = costs.hosts() > 1;
  const RangeCosts& ranges = costs.ranges();
  std::fill(bounds_.begin() + static_cast<std::ptrdiff_t>(stride_), bounds_.end(),
            Bound{kInfinity, kInfinity, kInfinity});
  for (int first = 0; first < ranges.end(); ++first) {
    for (int replicas = 1; replicas <= costs.max_replicas(); ++replicas) {
      if (costs.skips(replicas)) continue;
      RangeCosts::Walk walk = costs.walk(first, replicas);
      for (int border = first + 1; border <= ranges.end(); ++border) {
        if (!ranges.nested(first, border)) continue;
        const RangeCosts::Held& held = walk.to(border);
        if (costs.least_bytes(first, border, replicas, held) > costs.available_bytes()) {
          if (ranges.is_line()) break;
          continue;
        }
        const InFlight room = costs.in_flight(first, border, replicas, held);
        if (room.plain < 1 && room.recompute < 1) continue;
        Bound* row = &bounds_[static_cast<size_t>(border) * stride_];
        const StageTime time = fastest(costs, first, border, replicas, hosts_differ);
        const bool recompute = room.plain < 1;
        const double sum =
            time.forward_ns + time.backward_ns + (recompute ? time.recompute_ns : 0.0);
        const double period = time.period_ns(recompute);
        for (int ranks = replicas; ranks <= costs.ranks(); ++ranks) {
          const Bound& front = at(first, ranks - replicas);
          row[ranks].forward_ns =
              std::min(row[ranks].forward_ns, front.forward_ns + time.forward_ns);
          row[ranks].sum_ns = std::min(row[ranks].sum_ns, front.sum_ns + sum);
          row[ranks].period_ns = std::min(row[ranks].period_ns, std::max(front.period_ns, period));
        }
      }
    }
  }
}

}  // namespace rannc::partition
