#include "partition/brute/timeline.h"

#include <algorithm>
#include <stdexcept>

namespace rannc::partition::brute {
namespace {

std::vector<Step> group_order(const Shape& shape, int group) {
  const int64_t m = shape.micro_batches;
  const int64_t p = shape.groups;
  const int64_t v = shape.stages / shape.groups;
  std::vector<Step> forwards, backwards;
  int64_t warm_up = m;
  if (shape.schedule == plan::Schedule::interleaved) {
    for (int64_t n = 0; n < v * m; ++n) {
      const int64_t chunk = (n / p) % v;
      const int64_t micro_batch = (n / (p * v)) * p + n % p;
      forwards.push_back({static_cast<int>(chunk * p + group), true, micro_batch});
      backwards.push_back({static_cast<int>((v - 1 - chunk) * p + group), false, micro_batch});
    }
    warm_up = std::min(v * m, 2 * (p - 1 - group) + (v - 1) * p);
  } else {
    for (int64_t k = 0; k < m; ++k) {
      forwards.push_back({group, true, k});
      backwards.push_back({group, false, k});
    }
    if (shape.schedule == plan::Schedule::one_f_one_b) {
      warm_up = std::min<int64_t>(m, shape.stages - 1 - group);
    }
  }
  const auto w = static_cast<size_t>(warm_up);
  std::vector<Step> order(forwards.begin(), forwards.begin() + warm_up);
  for (size_t n = w; n < forwards.size(); ++n) {
    order.push_back(forwards[n]);
    order.push_back(backwards[n - w]);
  }
  order.insert(order.end(), backwards.end() - warm_up, backwards.end());
  return order;
}

Orders::Order merge(const Shape& shape) {
  const auto by_group = orders(shape);
  Orders::Order result;
  result.of_group = by_group;
  for (const std::vector<Step>& steps : by_group) {
    std::array<int64_t, kMostStages> count{};
    auto& counts = result.in_flight.emplace_back();
    for (const Step& step : steps) {
      const auto s = static_cast<size_t>(step.stage);
      count[s] += step.forward ? 1 : -1;
      result.most_in_flight[s] = std::max(result.most_in_flight[s], count[s]);
      if (step.forward) counts.push_back(count);
    }
    std::ranges::sort(counts);
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  }
  // Every forward may wait for those of all earlier stages, every backward for all later ones.
  std::array<int64_t, kMostStages> forwards{}, backwards{};
  const auto ready = [&](const Step& step) {
    for (int other = 0; other < shape.stages; ++other) {
      const auto o = static_cast<size_t>(other);
      if (step.forward && other < step.stage && forwards[o] <= step.micro_batch) return false;
      if (!step.forward && other > step.stage && backwards[o] <= step.micro_batch) return false;
      if (!step.forward && other == step.stage && forwards[o] <= step.micro_batch) return false;
    }
    return true;
  };
  std::vector<size_t> at(by_group.size());
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t group = 0; group < by_group.size(); ++group) {
      while (at[group] < by_group[group].size() && ready(by_group[group][at[group]])) {
        const Step& step = by_group[group][at[group]++];
        ++(step.forward ? forwards : backwards)[static_cast<size_t>(step.stage)];
        result.steps.push_back(step);
        moved = true;
      }
    }
  }
  if (result.steps.size() != static_cast<size_t>(2 * shape.stages * shape.micro_batches)) {
    throw std::runtime_error("brute force: a schedule that waits for itself");
  }
  return result;
}

}  // namespace

std::vector<std::vector<Step>> orders(const Shape& shape) {
  std::vector<std::vector<Step>> result;
  for (int group = 0; group < shape.groups; ++group) result.push_back(group_order(shape, group));
  return result;
}

const Orders::Order& Orders::get(const Shape& shape) {
  const auto known = known_.find(shape);
  if (known != known_.end()) return known->second;
  return known_.emplace(shape, merge(shape)).first->second;
}

std::array<double, kMostStages> Timeline::run(const Shape& shape,
                                              const Orders::Order& order) const {
  const auto m = static_cast<size_t>(shape.micro_batches);
  const auto stages = static_cast<size_t>(shape.stages);
  const auto groups = static_cast<size_t>(shape.groups);
  thread_local std::vector<double> ends;  // forward ends, then backward ends, by stage
  ends.resize(2 * stages * m);
  double* const forward_end = ends.data();
  double* const backward_end = ends.data() + stages * m;
  std::array<std::array<double, kMostStages>, kMostStages> forward_arrival{}, backward_arrival{};
  std::array<double, kMostStages> clock{};
  // A channel serves micro-batches in order, and so does its receiver: it may be asked for the
  // arrival when the receiver needs it.
  for (const Step& step : order.steps) {
    const auto s = static_cast<size_t>(step.stage);
    const auto k = static_cast<size_t>(step.micro_batch);
    double& now = clock[s % groups];
    if (step.forward) {
      for (Mask from = forward_from[s]; from != 0; from &= from - 1) {
        const auto f = static_cast<size_t>(__builtin_ctz(from));
        double& arrival = forward_arrival[f][s];
        arrival = std::max(arrival, forward_end[f * m + k]) + send_forward[f][s];
        now = std::max(now, arrival);
      }
      now += forward_ns[s];
      forward_end[s * m + k] = now;
    } else {
      for (Mask from = backward_from[s]; from != 0; from &= from - 1) {
        const auto f = static_cast<size_t>(__builtin_ctz(from));
        double& arrival = backward_arrival[f][s];
        arrival = std::max(arrival, backward_end[f * m + k]) + send_backward[f][s];
        now = std::max(now, arrival);
      }
      now += backward_ns[s];
      backward_end[s * m + k] = now;
    }
  }
  std::array<double, kMostStages> last{};
  for (size_t s = 0; s < stages; ++s) last[s] = backward_end[s * m + m - 1];
  return last;
}

}  // namespace rannc::partition::brute
