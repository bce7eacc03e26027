#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "partition/evaluate/detail.h"
#include "rannc/util/error.h"

// Section 5 of docs/planner-files.md: compute, transfers, simulation. Reductions are in
// evaluate_reduction.cpp.
namespace rannc::partition::evaluation {
namespace {

using plan::Rank;

using NodeTimes = std::vector<double> cost::ProfileNode::*;

/// What a stage takes on its slowest rank: the larger of what its device computes and of what its
/// host issues. `only_again`: nodes that a backward runs once more.
double longer_sum(const Layout& layout, size_t stage, NodeTimes device, NodeTimes host,
                  bool only_again = false) {
  double computed = 0, issued = 0;
  for (uint32_t index : layout.nodes[stage]) {
    if (only_again && !layout.runs_again(index)) continue;
    const cost::ProfileNode& node = layout.profile.nodes[index];
    computed += cost::cost_at(node.*device, layout.profile.rows, layout.rows[stage]);
    if ((node.*host).empty()) continue;
    issued += cost::cost_at(node.*host, layout.profile.rows, layout.rows[stage]);
  }
  double slowest = std::numeric_limits<double>::infinity();
  for (const Rank rank : layout.ranks(stage)) {
    slowest = std::min(slowest, layout.cluster.speed_of(layout.cluster.host_of(rank)));
  }
  return std::max(computed, issued) / slowest;
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
  const plan::StageMesh senders = layout.mesh(from), receivers = layout.mesh(to);
  const int64_t senders_count = senders.replicas(), receivers_count = receivers.replicas();
  Traffic inside, between;
  // Shares in units of 1 / (senders * receivers), so that their overlap is exact.
  for (int64_t i = 0; i < senders_count; ++i) {
    const int64_t begin = i * receivers_count;
    const int64_t end = begin + receivers_count;
    for (int64_t j = begin / senders_count; j < receivers_count && j * senders_count < end; ++j) {
      const int64_t overlap =
          std::min(end, (j + 1) * senders_count) - std::max(begin, j * senders_count);
      const Rank sender = senders.rank(static_cast<int>(i), 0);
      const Rank receiver = receivers.rank(static_cast<int>(j), 0);
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

/// When each action's data is there, filled in as the groups advance. Kept for each action and not
/// for each transfer, of which a plan can have half as many for each stage as there are stages.
class Clock {
 public:
  Clock(const Layout& layout, const std::vector<Transfer>& transfers,
        const std::vector<StageEvaluation>& stages)
      : layout_(layout), transfers_(transfers), stages_(stages) {
    into_.resize(layout.stages());
    out_of_.resize(layout.stages());
    for (size_t i = 0; i < transfers.size(); ++i) {
      out_of_[transfers[i].from].push_back(i);
      into_[transfers[i].to].push_back(i);
    }
    // Micro-batch by micro-batch: what waits for an action is then close together.
    std::vector<Data> forward, backward;
    for (size_t stage = 0; stage < layout.stages(); ++stage) {
      size_t going_back = 0;
      for (size_t i : out_of_[stage]) going_back += transfers[i].has_backward ? 1 : 0;
      forward.push_back({0, into_[stage].size()});
      backward.push_back({0, 1 + going_back});  // 1: the stage's own forward
    }
    const size_t count = layout.stages() * static_cast<size_t>(layout.plan.micro_batches);
    forward_.reserve(count);
    backward_.reserve(count);
    for (int64_t k = 0; k < layout.plan.micro_batches; ++k) {
      forward_.insert(forward_.end(), forward.begin(), forward.end());
      backward_.insert(backward_.end(), backward.begin(), backward.end());
    }
    forward_free_.assign(transfers.size(), 0);
    backward_free_ = forward_free_;
  }

  /// When the data of `action` has arrived; infinity: some of it is not known yet.
  [[nodiscard]] double ready(const Action& action) const {
    const Data& data =
        (action.backward ? backward_ : forward_)[index(action.stage, action.micro_batch)];
    return data.missing > 0 ? kUnknown : data.time;
  }

  /// Runs `action` from `start` on; returns its end. Micro-batches of a stage ascend, so a link is
  /// free when it has carried the one before.
  double run(const Action& action, double start) {
    const StageEvaluation& stage = stages_[action.stage];
    const double end = start + (action.backward ? stage.backward_ns : stage.forward_ns);
    if (!action.backward) backward_[index(action.stage, action.micro_batch)].arrive(end);
    for (size_t i : action.backward ? into_[action.stage] : out_of_[action.stage]) {
      const Transfer& transfer = transfers_[i];
      if (action.backward && !transfer.has_backward) continue;
      double& free = (action.backward ? backward_free_ : forward_free_)[i];
      free = std::max(end, free) + (action.backward ? transfer.backward_ns : transfer.forward_ns);
      const size_t waiting = action.backward ? transfer.from : transfer.to;
      (action.backward ? backward_ : forward_)[index(waiting, action.micro_batch)].arrive(free);
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
  struct Data {
    double time = 0;
    size_t missing = 0;
    void arrive(double when) {
      time = std::max(time, when);
      --missing;
    }
  };
  [[nodiscard]] size_t index(size_t stage, int64_t micro_batch) const {
    return static_cast<size_t>(micro_batch) * layout_.stages() + stage;
  }

  const Layout& layout_;
  const std::vector<Transfer>& transfers_;
  const std::vector<StageEvaluation>& stages_;
  std::vector<std::vector<size_t>> into_, out_of_;    // [stage] transfers
  std::vector<Data> forward_, backward_;              // [micro-batch][stage]
  std::vector<double> forward_free_, backward_free_;  // [transfer]
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
  std::vector<bool> listed(layout.groups, true);  // in `awake`, each at most once
  std::iota(awake.begin(), awake.end(), size_t{0});
  while (!awake.empty()) {
    const size_t group = awake.back();
    awake.pop_back();
    listed[group] = false;
    for (; next[group] < orders[group].size(); ++next[group]) {
      const Action& action = orders[group][next[group]];
      const double ready = clock.ready(action);
      if (ready == Clock::kUnknown) break;
      free[group] = clock.run(action, std::max(ready, free[group]));
      if (action.backward) last[action.stage] = free[group];
      for (size_t peer : clock.peers(action)) {
        if (peer == group || listed[peer]) continue;
        listed[peer] = true;
        awake.push_back(peer);
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
    stages[s].forward_ns =
        longer_sum(layout, s, &cost::ProfileNode::forward_ns, &cost::ProfileNode::forward_host_ns);
    gradient_ns.push_back(longer_sum(layout, s, &cost::ProfileNode::backward_ns,
                                     &cost::ProfileNode::backward_host_ns));
    stages[s].backward_ns = gradient_ns[s] + longer_sum(layout, s, &cost::ProfileNode::forward_ns,
                                                        &cost::ProfileNode::forward_host_ns,
                                                        /*only_again=*/true);
  }
  return gradient_ns;
}

}  // namespace rannc::partition::evaluation
