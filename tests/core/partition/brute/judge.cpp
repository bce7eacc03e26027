#include "partition/brute/judge.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace rannc::partition::brute {
namespace {

constexpr double kNsPerS = 1e9;

/// Ranks of a group as bits: host 0 has bits 0 to 7, host 1 has 8 to 15.
std::array<uint32_t, kMostRanks> rank_sets(const Choice& choice) {
  std::array<uint32_t, kMostRanks> sets{};
  int first = 0, second = kMostRanks;
  for (size_t g = 0; g < static_cast<size_t>(choice.shape.groups); ++g) {
    const int a = choice.on_first_host[g], b = choice.replicas[g] - a;
    sets[g] = ((1u << a) - 1) << first | ((1u << b) - 1) << second;
    first += a;
    second += b;
  }
  return sets;
}

bool spans_hosts(uint32_t ranks) { return (ranks & 0xff) != 0 && (ranks >> kMostRanks) != 0; }

double ring_ns(int replicas, double bytes, double bandwidth, double latency) {
  if (replicas == 1) return 0;
  const double r = replicas;
  return 2 * (r - 1) / r * bytes / bandwidth * kNsPerS + 2 * (r - 1) * latency;
}

}  // namespace

Judge::Judge(const cost::GraphProfile& profile, const cost::Cluster& cluster,
             const Request& request)
    : profile_(profile), cluster_(cluster), request_(request), tables_(profile, cluster, request) {
  if (cluster.hosts > 2 || cluster.ranks() > kMostRanks) {
    throw std::runtime_error("brute force: too many hosts or ranks");
  }
}

int64_t Judge::rows(int64_t micro_batches, int replicas) const {
  const int64_t parts = micro_batches * replicas;
  return (request_.global_batch + parts - 1) / parts;
}

double Judge::fullest_moment(const Choice& choice, int group) {
  const auto g = static_cast<size_t>(group), groups = static_cast<size_t>(choice.shape.groups);
  const int64_t b = rows(choice.shape.micro_batches, choice.replicas[g]);
  struct Held {
    const Share* share = nullptr;
    const Backward* backward = nullptr;
    double kept = 0;
    int64_t in_flight = 0;
    bool began = false;
  };
  std::array<Held, kMostStages> stages{};
  Mask all = 0;
  for (size_t s = choice.stages.size(); s-- > 0;) {
    if (s % groups != g) continue;
    Held& stage = stages[s];
    stage.share = &tables_.share(choice.stages[s], b);
    stage.backward = &tables_.backward(choice.stages[s], b, all);
    const bool recompute = (choice.recompute >> s & 1) != 0;
    stage.kept = recompute ? stage.share->in + stage.share->gin : stage.share->saved;
    all |= choice.stages[s];
  }
  const Weights& weights = tables_.weights(all);
  const double shares = request_.shard_optimizer ? choice.replicas[g] : 1;
  double most = 0, sent = 0;
  const size_t until_gone = choice.shape.schedule != plan::Schedule::interleaved ? 1
                            : groups == 2                                        ? 2
                                                                                 : 3;
  std::vector<double> all_sent;
  const auto send = [&](double bytes) {
    all_sent.push_back(bytes);
    const size_t gone = all_sent.size() - std::min(all_sent.size(), until_gone);
    sent =
        std::accumulate(all_sent.begin() + static_cast<std::ptrdiff_t>(gone), all_sent.end(), 0.0);
  };
  const std::vector<Step>& steps = orders_.get(choice.shape).of_group[g];
  for (size_t k = 0; k < steps.size(); ++k) {
    Held& stage = stages[static_cast<size_t>(steps[k].stage)];
    stage.in_flight += steps[k].forward ? 1 : -1;
    const auto look = [&](double more) {
      double bytes = weights.bytes + weights.optimizer / shares + sent + more;
      for (const Held& held : stages) {
        bytes += static_cast<double>(held.in_flight) * held.kept;
        if (held.began) bytes += held.backward->gradients;
      }
      if (k + 1 < steps.size()) {
        const Share& next = *stages[static_cast<size_t>(steps[k + 1].stage)].share;
        bytes += steps[k + 1].forward ? next.in : next.out_gradients;
      }
      most = std::max(most, bytes);
    };
    if (steps[k].forward) {
      look(0);
      send(stage.share->out);
    } else {
      look(stage.began ? stage.backward->later : stage.backward->first);
      stage.began = true;
      send(stage.share->in_gradients);
    }
    look(0);
  }
  return most;
}

double Judge::peak_bytes(const Choice& choice, int group) {
  if (tables_.by_moments()) return fullest_moment(choice, group);
  const auto g = static_cast<size_t>(group);
  const int64_t b = rows(choice.shape.micro_batches, choice.replicas[g]);
  Mask all = 0;
  double buffers = 0, workspace = 0, again = 0;
  std::array<double, kMostStages> kept{};
  for (size_t s = g; s < choice.stages.size(); s += static_cast<size_t>(choice.shape.groups)) {
    const Share& share = tables_.share(choice.stages[s], b);
    const bool recompute = (choice.recompute >> s & 1) != 0;
    all |= choice.stages[s];
    buffers += 2 * (share.in + share.out);
    workspace = std::max(workspace, share.workspace);
    kept[s] = recompute ? share.in + share.gin : share.saved;
    if (recompute) again = std::max(again, share.saved);
  }
  double activations = 0;
  for (const auto& counts : orders_.get(choice.shape).in_flight[g]) {
    double sum = 0;
    for (size_t s = 0; s < choice.stages.size(); ++s) {
      sum += static_cast<double>(counts[s]) * kept[s];
    }
    activations = std::max(activations, sum);
  }
  return tables_.weights(all).sum() + activations + again + buffers + workspace;
}

/// By the page's rule for hosts of other speeds, on each group's slowest rank; before replicas are
/// placed, none is slower than the fastest host.
double Judge::speed(const Choice& choice, size_t group, bool placed) const {
  const double near = cluster_.speed_of(0), far = cluster_.hosts > 1 ? cluster_.speed_of(1) : near;
  if (!placed) return std::max(near, far);
  if (choice.on_first_host[group] == choice.replicas[group]) return near;
  return choice.on_first_host[group] == 0 ? far : std::min(near, far);
}

Timeline Judge::compute(const Choice& choice, bool placed) {
  Timeline timeline;
  const size_t stages = choice.stages.size();
  for (size_t s = 0; s < stages; ++s) {
    const int replicas = choice.replicas[s % static_cast<size_t>(choice.shape.groups)];
    const Share& share =
        tables_.share(choice.stages[s], rows(choice.shape.micro_batches, replicas));
    timeline.forward_ns[s] = share.forward_ns;
    timeline.backward_ns[s] =
        share.backward_ns + ((choice.recompute >> s & 1) != 0 ? share.forward_ns : 0);
    const double speed = this->speed(choice, s % static_cast<size_t>(choice.shape.groups), placed);
    timeline.forward_ns[s] /= speed;
    timeline.backward_ns[s] /= speed;
    for (size_t t = s + 1; t < stages; ++t) {
      const Crossing& crossing = tables_.crossing(choice.stages[s], choice.stages[t]);
      if (crossing.forward) timeline.forward_from[t] |= 1u << s;
      if (crossing.backward) timeline.backward_from[s] |= 1u << t;
    }
  }
  return timeline;
}

double Judge::transfer_ns(const Choice& choice, size_t from, size_t to, double per_row,
                          double fixed) const {
  const auto groups = static_cast<size_t>(choice.shape.groups);
  const bool same = from % groups == to % groups;
  const int senders = choice.replicas[from % groups], receivers = choice.replicas[to % groups];
  const int near_senders = choice.on_first_host[from % groups];
  const int near_receivers = choice.on_first_host[to % groups];
  const auto rows = static_cast<double>(this->rows(choice.shape.micro_batches, 1));

  std::array<std::array<double, kMostRanks>, 2> sent{}, received{};  // inside hosts, between hosts
  std::array<double, 2> host_sent{}, host_received{};
  std::array<bool, 2> any{};
  for (int i = 0; i < senders; ++i) {
    for (int j = 0; j < receivers; ++j) {
      const int overlap =
          std::min((i + 1) * receivers, (j + 1) * senders) - std::max(i * receivers, j * senders);
      if (overlap <= 0 || (same && i == j)) continue;
      const double bytes =
          static_cast<double>(overlap) / (senders * receivers) * rows * per_row + fixed;
      const size_t from_host = i < near_senders ? 0 : 1, to_host = j < near_receivers ? 0 : 1;
      const size_t link = from_host == to_host ? 0 : 1;
      any[link] = true;
      sent[link][static_cast<size_t>(i)] += bytes;
      received[link][static_cast<size_t>(j)] += bytes;
      if (link == 0) continue;
      host_sent[from_host] += bytes;
      host_received[to_host] += bytes;
    }
  }
  double result = 0;
  if (any[0]) {
    const double most = std::max(std::ranges::max(sent[0]), std::ranges::max(received[0]));
    result =
        cluster_.intra_host.latency_ns + most / cluster_.intra_host.bandwidth_bytes_per_s * kNsPerS;
  }
  if (any[1]) {
    const double most = std::max(std::ranges::max(sent[1]), std::ranges::max(received[1]));
    const double host = std::max(std::ranges::max(host_sent), std::ranges::max(host_received));
    const double bandwidth = cluster_.inter_host.bandwidth_bytes_per_s;
    result = std::max(
        result,
        cluster_.inter_host.latency_ns +
            std::max(most / bandwidth, host / (cluster_.links_per_host * bandwidth)) * kNsPerS);
  }
  return result;
}

double Judge::least_transfer_ns(const Choice& choice, size_t from, size_t to, double per_row,
                                double fixed) const {
  const auto groups = static_cast<size_t>(choice.shape.groups);
  const size_t f = from % groups, t = to % groups;
  Choice pair = choice;
  double least = std::numeric_limits<double>::infinity();
  for (int a = 0; a <= choice.replicas[f]; ++a) {
    for (int b = 0; b <= choice.replicas[t]; ++b) {
      if (f == t && a != b) continue;
      const int near = f == t ? a : a + b;
      const int all = f == t ? choice.replicas[f] : choice.replicas[f] + choice.replicas[t];
      if (near > near_room() || all - near > far_room()) continue;
      pair.on_first_host[f] = a;
      pair.on_first_host[t] = b;
      least = std::min(least, transfer_ns(pair, from, to, per_row, fixed));
    }
  }
  return least;
}

/// Own reductions, then the tied ones. ring_of(stages, bytes): one ring over their ranks.
template <class RingOf>
double Judge::reduce(const Choice& choice, const Ends& ends, bool one_after_another,
                     RingOf ring_of) {
  const size_t stages = choice.stages.size();
  const auto groups = static_cast<size_t>(choice.shape.groups);
  double latest = 0;
  std::array<size_t, kMostStages> sequence{};
  std::iota(sequence.begin(), sequence.end(), size_t{0});
  if (one_after_another) {
    std::stable_sort(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(stages),
                     [&](size_t a, size_t b) { return ends[a] < ends[b]; });
  }
  Ends free = ends;
  std::array<double, kMostRanks> group_free{};
  const double buckets = request_.reduction_buckets;
  for (size_t index = 0; index < stages; ++index) {
    const size_t s = sequence[index];
    const double bytes = tables_.own_gradient_bytes(choice.stages[s]);
    if (bytes > 0) {
      // Before replicas are placed: the earliest that a bucket may be ready.
      const double speed = one_after_another ? this->speed(choice, s % groups, /*placed=*/true)
                                             : std::ranges::min(cluster_.speed_of_host.empty()
                                                                    ? std::vector{1.0}
                                                                    : cluster_.speed_of_host);
      const double backward = tables_
                                  .share(choice.stages[s], rows(choice.shape.micro_batches,
                                                                choice.replicas[s % groups]))
                                  .backward_ns /
                              speed;
      const double ring = ring_of(1u << s, bytes / buckets);
      double now = one_after_another ? group_free[s % groups] : 0;
      for (double k = 1; k <= buckets; ++k) {
        now = std::max(now, ends[s] - backward * (1 - k / buckets)) + ring;
      }
      free[s] = group_free[s % groups] = now;
    }
    latest = std::max({latest, ends[s], free[s]});
  }
  for (const Tables::Tied& set : tied_) {
    double start = 0;
    for (size_t s = 0; s < stages; ++s) {
      if ((set.stages >> s & 1) != 0) start = std::max(start, free[s]);
    }
    const double end = start + ring_of(set.stages, set.gradient_bytes);
    for (size_t s = 0; s < stages; ++s) {
      if ((set.stages >> s & 1) != 0) free[s] = end;
    }
    latest = std::max(latest, end);
  }
  return latest;
}

double Judge::iteration_ns(const Choice& choice) {
  Timeline timeline = compute(choice, /*placed=*/true);
  const size_t stages = choice.stages.size();
  for (size_t s = 0; s < stages; ++s) {
    for (size_t t = s + 1; t < stages; ++t) {
      const Crossing& c = tables_.crossing(choice.stages[s], choice.stages[t]);
      if (c.forward) {
        timeline.send_forward[s][t] = transfer_ns(choice, s, t, c.forward_per_row, c.forward_fixed);
      }
      if (c.backward) {
        timeline.send_backward[t][s] =
            transfer_ns(choice, t, s, c.backward_per_row, c.backward_fixed);
      }
    }
  }
  const Ends ends = timeline.run(choice.shape, orders_.get(choice.shape));

  tables_.tied(choice.stages, tied_);
  const auto groups = static_cast<size_t>(choice.shape.groups);
  const auto sets = rank_sets(choice);
  const auto ranks_of = [&](uint32_t in) {
    uint32_t ranks = 0;
    for (size_t s = 0; s < stages; ++s) {
      if ((in >> s & 1) != 0) ranks |= sets[s % groups];
    }
    return ranks;
  };
  // With two hosts, all groups that span hosts are on both.
  std::vector<uint32_t> spanning;
  const auto note = [&](uint32_t ranks) {
    if (spans_hosts(ranks) && std::ranges::find(spanning, ranks) == spanning.end()) {
      spanning.push_back(ranks);
    }
  };
  for (size_t s = 0; s < stages; ++s) {
    if (tables_.own_gradient_bytes(choice.stages[s]) > 0) note(sets[s % groups]);
  }
  for (const Tables::Tied& set : tied_) note(ranks_of(set.stages));
  const double sharing =
      std::max(1.0, static_cast<double>(spanning.size()) / cluster_.links_per_host);

  return reduce(choice, ends, /*one_after_another=*/true, [&](uint32_t in, double bytes) {
    const uint32_t ranks = ranks_of(in);
    const bool inter = spans_hosts(ranks);
    const cost::Link& link = inter ? cluster_.inter_host : cluster_.intra_host;
    return ring_ns(__builtin_popcount(ranks), bytes,
                   link.bandwidth_bytes_per_s / (inter ? sharing : 1), link.latency_ns);
  });
}

double Judge::least_ring_ns(int replicas, double bytes) const {
  double least = std::numeric_limits<double>::infinity();
  const auto take = [&](const cost::Link& link) {
    least = std::min(least, ring_ns(replicas, bytes, link.bandwidth_bytes_per_s, link.latency_ns));
  };
  if (replicas <= cluster_.devices_per_host) take(cluster_.intra_host);
  if (cluster_.hosts > 1 && replicas > 1) take(cluster_.inter_host);
  return least;
}

/// Rings at their best, and no stage waits for another's own reduction.
double Judge::bound_after(const Choice& choice, const Ends& ends) {
  tables_.tied(choice.stages, tied_);
  const auto groups = static_cast<size_t>(choice.shape.groups);
  return reduce(choice, ends, /*one_after_another=*/false, [&](uint32_t in, double bytes) {
    uint32_t counted = 0;
    int replicas = 0;
    for (size_t s = 0; s < choice.stages.size(); ++s) {
      const size_t g = s % groups;
      if ((in >> s & 1) == 0 || (counted >> g & 1) != 0) continue;
      counted |= 1u << g;
      replicas += choice.replicas[g];
    }
    return least_ring_ns(replicas, bytes);
  });
}

double Judge::work_bound(const Choice& choice) {
  const Timeline timeline = compute(choice, /*placed=*/false);
  const size_t stages = choice.stages.size();
  const auto groups = static_cast<size_t>(choice.shape.groups);
  const auto m = static_cast<double>(choice.shape.micro_batches);
  std::array<double, kMostRanks> work{};  // of a group
  for (size_t s = 0; s < stages; ++s) {
    work[s % groups] += m * (timeline.forward_ns[s] + timeline.backward_ns[s]);
  }
  Ends start{}, end{};
  for (size_t s = 0; s < stages; ++s) {
    for (Mask from = timeline.forward_from[s]; from != 0; from &= from - 1) {
      const auto f = static_cast<size_t>(__builtin_ctz(from));
      start[s] = std::max(start[s], start[f] + timeline.forward_ns[f]);
    }
  }
  const bool plain = groups == stages;
  for (size_t s = stages; s-- > 0;) {
    // With several stages on a group, only what is its own is certain to come before the end.
    end[s] = start[s] + (plain ? work[s] : m * (timeline.forward_ns[s] + timeline.backward_ns[s]));
    for (Mask from = timeline.backward_from[s]; from != 0; from &= from - 1) {
      const auto f = static_cast<size_t>(__builtin_ctz(from));
      end[s] = std::max(end[s], end[f] + timeline.backward_ns[s]);
    }
  }
  double bound = bound_after(choice, end);
  for (size_t g = 0; g < groups; ++g) bound = std::max(bound, work[g]);
  return bound;
}

double Judge::simulated_bound(const Choice& choice) {
  Timeline timeline = compute(choice, /*placed=*/false);
  const size_t stages = choice.stages.size();
  for (size_t s = 0; s < stages; ++s) {
    for (size_t t = s + 1; t < stages; ++t) {
      const Crossing& c = tables_.crossing(choice.stages[s], choice.stages[t]);
      if (c.forward) {
        timeline.send_forward[s][t] =
            least_transfer_ns(choice, s, t, c.forward_per_row, c.forward_fixed);
      }
      if (c.backward) {
        timeline.send_backward[t][s] =
            least_transfer_ns(choice, t, s, c.backward_per_row, c.backward_fixed);
      }
    }
  }
  return bound_after(choice, timeline.run(choice.shape, orders_.get(choice.shape)));
}

plan::Plan Judge::to_plan(const Choice& choice) const {
  plan::Plan plan;
  plan.schedule = choice.shape.schedule;
  plan.interleave = choice.shape.stages / choice.shape.groups;
  plan.micro_batches = choice.shape.micro_batches;
  std::vector<std::vector<plan::Rank>> ranks;
  int first = 0, second = near_room();
  for (size_t g = 0; g < static_cast<size_t>(choice.shape.groups); ++g) {
    std::vector<plan::Rank>& of_group = ranks.emplace_back();
    for (int k = 0; k < choice.replicas[g]; ++k) {
      of_group.push_back(k < choice.on_first_host[g] ? first++ : second++);
    }
  }
  for (size_t s = 0; s < choice.stages.size(); ++s) {
    plan::Stage& stage = plan.stages.emplace_back();
    for (size_t k = 0; k < profile_.nodes.size(); ++k) {
      if ((choice.stages[s] >> k & 1) != 0) stage.nodes.push_back(profile_.nodes[k].name);
    }
    stage.ranks = ranks[s % ranks.size()];
    stage.recompute = (choice.recompute >> s & 1) != 0;
  }
  return plan;
}

}  // namespace rannc::partition::brute
