#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "partition/evaluate_detail.h"
#include "rannc/util/error.h"

// Section 5 of docs/planner-files.md: compute, transfers, simulation. Reductions are in
// evaluate_reduction.cpp.
namespace rannc::partition::evaluation {
namespace {

using plan::Rank;

double sum_at(const Layout& layout, size_t stage, std::vector<double> cost::ProfileNode::*costs) {
  double sum = 0;
  for (uint32_t node : layout.nodes[stage]) {
    sum +=
        cost::cost_at(layout.profile.nodes[node].*costs, layout.profile.rows, layout.rows[stage]);
  }
  return sum;
}

/// How many bytes each device and each host sends and receives over one class of links.
struct Traffic {
  bool any = false;
  std::map<Rank, double> sent, received;
  std::map<int, double> host_sent, host_received;

  void add(const cost::Cluster& cluster, Rank from, Rank to, double bytes) {
    any = true;
    sent[from] += bytes;
    received[to] += bytes;
    host_sent[cluster.host_of(from)] += bytes;
    host_received[cluster.host_of(to)] += bytes;
  }
  [[nodiscard]] double device() const { return std::max(largest(sent), largest(received)); }
  [[nodiscard]] double host() const { return std::max(largest(host_sent), largest(host_received)); }

 private:
  template <class Key>
  static double largest(const std::map<Key, double>& sums) {
    double most = 0;
    for (const auto& [key, bytes] : sums) most = std::max(most, bytes);
    return most;
  }
};

/// Going back, every pair sends what it received: the largest sums, and so the time, of a direction
/// depend only on `size`.
double transfer_ns(const Layout& layout, size_t from, size_t to, const cost::Size& size) {
  const std::vector<Rank>& senders = layout.ranks(from);
  const std::vector<Rank>& receivers = layout.ranks(to);
  const auto senders_count = static_cast<int64_t>(senders.size());
  const auto receivers_count = static_cast<int64_t>(receivers.size());
  Traffic inside, between;
  // Shares in units of 1 / (senders * receivers), so that their overlap is exact.
  for (int64_t i = 0; i < senders_count; ++i) {
    const int64_t begin = i * receivers_count;
    const int64_t end = begin + receivers_count;
    for (int64_t j = begin / senders_count; j < receivers_count && j * senders_count < end; ++j) {
      const int64_t overlap =
          std::min(end, (j + 1) * senders_count) - std::max(begin, j * senders_count);
      const Rank sender = senders[static_cast<size_t>(i)];
      const Rank receiver = receivers[static_cast<size_t>(j)];
      if (overlap <= 0 || sender == receiver) continue;
      const double share =
          static_cast<double>(overlap) / static_cast<double>(senders_count * receivers_count);
      const double bytes =
          share * static_cast<double>(layout.micro_rows) * size.bytes_per_row + size.fixed_bytes;
      const bool one_host = layout.cluster.host_of(sender) == layout.cluster.host_of(receiver);
      (one_host ? inside : between).add(layout.cluster, sender, receiver, bytes);
    }
  }
  double ns = 0;
  if (inside.any) {
    const cost::Link& link = layout.cluster.intra_host;
    ns = link.latency_ns + inside.device() / link.bandwidth_bytes_per_s * 1e9;
  }
  if (between.any) {
    const cost::Link& link = layout.cluster.inter_host;
    const double links = layout.cluster.links_per_host;
    const double bytes = std::max(between.device(), between.host() / links);
    ns = std::max(ns, link.latency_ns + bytes / link.bandwidth_bytes_per_s * 1e9);
  }
  return ns;
}

}  // namespace

std::vector<Transfer> transfers(const Layout& layout) {
  struct Sizes {
    cost::Size forward, backward;
    bool has_backward = false;
  };
  std::map<std::pair<size_t, size_t>, Sizes> sizes;
  std::set<std::tuple<uint32_t, uint32_t, size_t>> counted;  // node, output, stage that uses it
  for (uint32_t user = 0; user < layout.profile.nodes.size(); ++user) {
    const size_t to = layout.stage_of[user];
    for (const cost::ProfileUse& use : layout.profile.nodes[user].inputs) {
      if (use.is_input) continue;
      const size_t from = layout.stage_of[use.node];
      if (from == to || !counted.emplace(use.node, use.output, to).second) continue;
      const cost::ProfileOutput& value = layout.profile.nodes[use.node].outputs[use.output];
      Sizes& pair = sizes[{from, to}];
      pair.forward.bytes_per_row += value.size.bytes_per_row;
      pair.forward.fixed_bytes += value.size.fixed_bytes;
      if (!value.grad) continue;
      pair.has_backward = true;
      pair.backward.bytes_per_row += value.size.bytes_per_row;
      pair.backward.fixed_bytes += value.size.fixed_bytes;
    }
  }
  std::vector<Transfer> found;
  for (const auto& [stages, size] : sizes) {
    const auto [from, to] = stages;
    found.push_back({from, to, size.forward.at(static_cast<double>(layout.micro_rows)),
                     transfer_ns(layout, from, to, size.forward),
                     size.has_backward ? transfer_ns(layout, from, to, size.backward) : 0,
                     size.has_backward});
  }
  return found;
}

namespace {

/// Ends of actions and arrivals of transfers, filled in as the groups advance.
class Clock {
 public:
  Clock(const Layout& layout, const std::vector<Transfer>& transfers,
        const std::vector<StageEvaluation>& stages)
      : layout_(layout), transfers_(transfers), stages_(stages) {
    const auto count = static_cast<size_t>(layout.plan.micro_batches);
    forward_end_.assign(layout.stages(), std::vector<double>(count, kUnknown));
    backward_end_ = forward_end_;
    forward_arrival_.assign(transfers.size(), std::vector<double>(count, kUnknown));
    backward_arrival_ = forward_arrival_;
    into_.resize(layout.stages());
    out_of_.resize(layout.stages());
    for (size_t i = 0; i < transfers.size(); ++i) {
      out_of_[transfers[i].from].push_back(i);
      into_[transfers[i].to].push_back(i);
    }
  }

  /// When the data of `action` has arrived; infinity: some of it is not known yet.
  [[nodiscard]] double ready(const Action& action) const {
    const auto k = static_cast<size_t>(action.micro_batch);
    double time = 0;
    if (!action.backward) {
      for (size_t transfer : into_[action.stage]) {
        time = std::max(time, forward_arrival_[transfer][k]);
      }
      return time;
    }
    time = forward_end_[action.stage][k];
    for (size_t transfer : out_of_[action.stage]) {
      if (transfers_[transfer].has_backward) time = std::max(time, backward_arrival_[transfer][k]);
    }
    return time;
  }

  /// Runs `action` from `start` on; returns its end.
  double run(const Action& action, double start) {
    const auto k = static_cast<size_t>(action.micro_batch);
    const StageEvaluation& stage = stages_[action.stage];
    const double end = start + (action.backward ? stage.backward_ns : stage.forward_ns);
    (action.backward ? backward_end_ : forward_end_)[action.stage][k] = end;
    for (size_t transfer : action.backward ? into_[action.stage] : out_of_[action.stage]) {
      if (action.backward && !transfers_[transfer].has_backward) continue;
      std::vector<double>& arrivals =
          (action.backward ? backward_arrival_ : forward_arrival_)[transfer];
      const double free = k == 0 ? 0 : arrivals[k - 1];
      arrivals[k] = std::max(end, free) + (action.backward ? transfers_[transfer].backward_ns
                                                           : transfers_[transfer].forward_ns);
    }
    return end;
  }

  /// Groups that may be able to go on once `action` has run.
  [[nodiscard]] std::vector<size_t> peers(const Action& action) const {
    std::vector<size_t> groups;
    for (size_t i : action.backward ? into_[action.stage] : out_of_[action.stage]) {
      groups.push_back(layout_.group_of(action.backward ? transfers_[i].from : transfers_[i].to));
    }
    return groups;
  }

  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

 private:
  const Layout& layout_;
  const std::vector<Transfer>& transfers_;
  const std::vector<StageEvaluation>& stages_;
  std::vector<std::vector<double>> forward_end_, backward_end_;          // [stage][micro-batch]
  std::vector<std::vector<double>> forward_arrival_, backward_arrival_;  // [transfer][micro-batch]
  std::vector<std::vector<size_t>> into_, out_of_;                       // [stage] transfers
};

}  // namespace

std::vector<double> simulate_groups(const Layout& layout,
                                    const std::vector<std::vector<Action>>& orders,
                                    const std::vector<Transfer>& transfers,
                                    const std::vector<StageEvaluation>& stages) {
  Clock clock(layout, transfers, stages);
  std::vector<double> free(layout.groups, 0), last(layout.stages(), 0);
  std::vector<size_t> next(layout.groups, 0);
  std::vector<size_t> awake(layout.groups);
  std::iota(awake.begin(), awake.end(), size_t{0});
  while (!awake.empty()) {
    const size_t group = awake.back();
    awake.pop_back();
    for (; next[group] < orders[group].size(); ++next[group]) {
      const Action& action = orders[group][next[group]];
      const double ready = clock.ready(action);
      if (ready == Clock::kUnknown) break;
      free[group] = clock.run(action, std::max(ready, free[group]));
      if (action.backward) last[action.stage] = free[group];
      for (size_t peer : clock.peers(action)) {
        if (peer != group) awake.push_back(peer);
      }
    }
  }
  for (size_t group = 0; group < layout.groups; ++group) {
    RANNC_CHECK(next[group] == orders[group].size(),
                fmt::format("group {} of ranks is stuck at action {} of {}", group, next[group],
                            orders[group].size()));
  }
  return last;
}

std::vector<std::vector<Action>> compute_orders(const Layout& layout) {
  const int64_t m = layout.plan.micro_batches;
  const auto p = static_cast<int64_t>(layout.groups);
  const int64_t v =
      layout.plan.schedule == plan::Schedule::interleaved ? layout.plan.interleave : 1;
  const int64_t count = v * m;
  std::vector<std::vector<Action>> orders(layout.groups);
  for (int64_t d = 0; d < p; ++d) {
    // The n-th forward or backward of the group.
    const auto action = [&](int64_t n, bool backward) {
      if (v == 1) return Action{static_cast<uint32_t>(d), n, backward};
      const int64_t turn = (n / p) % v;
      const int64_t chunk = backward ? v - 1 - turn : turn;
      return Action{static_cast<uint32_t>(chunk * p + d), n / (p * v) * p + n % p, backward};
    };
    int64_t warm_up = count;  // gpipe
    if (layout.plan.schedule == plan::Schedule::one_f_one_b) {
      warm_up = std::min(m, p - 1 - d);
    } else if (layout.plan.schedule == plan::Schedule::interleaved) {
      warm_up = std::min(count, 2 * (p - 1 - d) + (v - 1) * p);
    }
    std::vector<Action>& order = orders[static_cast<size_t>(d)];
    int64_t backwards = 0;
    for (int64_t n = 0; n < count; ++n) {
      order.push_back(action(n, false));
      if (n >= warm_up) order.push_back(action(backwards++, true));
    }
    while (backwards < count) order.push_back(action(backwards++, true));
  }
  return orders;
}

std::vector<double> evaluate_compute(const Layout& layout, std::vector<StageEvaluation>& stages) {
  std::vector<double> gradient_ns;
  for (size_t s = 0; s < layout.stages(); ++s) {
    stages[s].rows = layout.rows[s];
    stages[s].forward_ns = sum_at(layout, s, &cost::ProfileNode::forward_ns);
    gradient_ns.push_back(sum_at(layout, s, &cost::ProfileNode::backward_ns));
    stages[s].backward_ns =
        gradient_ns[s] + (layout.plan.stages[s].recompute ? stages[s].forward_ns : 0);
  }
  return gradient_ns;
}

}  // namespace rannc::partition::evaluation
