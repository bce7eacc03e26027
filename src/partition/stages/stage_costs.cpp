#include "partition/stages/stage_costs.h"

#include <algorithm>
#include <cmath>

#include "partition/problem/state_bytes.h"

namespace rannc::partition {
namespace {

constexpr double kNsPerSecond = 1e9;

int64_t share(int64_t global_batch, int64_t micro_batches, int replicas) {
  const int64_t parts = micro_batches * replicas;
  return (global_batch + parts - 1) / parts;
}

}  // namespace

StageCosts::StageCosts(const RangeCosts& ranges, const cost::Cluster& cluster,
                       const Request& request, int64_t micro_batches, Grid grid, Figure figure)
    : ranges_(ranges),
      cluster_(cluster),
      request_(request),
      micro_batches_(micro_batches),
      grid_(grid),
      figure_(figure),
      max_replicas_(static_cast<int>(
          std::min<int64_t>(cluster.ranks(), request.global_batch / micro_batches) / grid.step())),
      available_bytes_(cluster.device_memory_bytes * (1 - request.memory_margin)) {
  for (int replicas = 1; replicas <= max_replicas_; ++replicas) {
    tables_.push_back(&ranges.at_rows(rows(replicas)));
  }
}

int64_t StageCosts::rows(int replicas) const {
  return share(request_.global_batch, micro_batches_, replicas * grid_.step());
}

LinkClasses StageCosts::classes(int first_rank, int replicas) const {
  // Every column looks like the first one, but for how fast it is.
  const int first = first_rank * grid_.unit, end = (first_rank + replicas) * grid_.unit;
  const int first_host = cluster_.host_of(first), last_host = cluster_.host_of(end - 1);
  LinkClasses classes;
  classes.in_inter = first > 0 && cluster_.host_of(first - 1) != last_host;
  classes.out_inter = end < cluster_.ranks() / grid_.columns && cluster_.host_of(end) != first_host;
  classes.ring_inter =
      first_host != last_host ||
      (grid_.columns > 1 && cluster_.ranks() / grid_.columns >= cluster_.devices_per_host);
  if (cluster_.speed_of_host.empty()) return classes;
  double slowest = cluster_.fastest();
  for (int column = 0; column < grid_.columns; ++column) {
    const int offset = column * (cluster_.ranks() / grid_.columns);
    const int last = cluster_.host_of(offset + end - 1);
    for (int host = cluster_.host_of(offset + first); host <= last; ++host) {
      slowest = std::min(slowest, cluster_.speed_of(host));
    }
  }
  classes.slowdown = 1 / slowest;
  return classes;
}

double StageCosts::transfer(double bytes, int replicas, bool inter) const {
  if (!inter) {
    return cluster_.intra_host.latency_ns +
           bytes / cluster_.intra_host.bandwidth_bytes_per_s * kNsPerSecond;
  }
  const double senders = std::min(replicas * grid_.unit, cluster_.devices_per_host);
  const double load = std::max(1.0, senders / cluster_.links_per_host);
  return cluster_.inter_host.latency_ns +
         bytes * load / cluster_.inter_host.bandwidth_bytes_per_s * kNsPerSecond;
}

double StageCosts::ring(double bytes, int ranks, bool inter) const {
  if (ranks < 2 || bytes <= 0) return 0;
  const cost::Link& link = inter ? cluster_.inter_host : cluster_.intra_host;
  const double hops = 2.0 * (ranks - 1);
  return hops / ranks * bytes / link.bandwidth_bytes_per_s * kNsPerSecond + hops * link.latency_ns;
}

/// The replicas' own ring. Rings across columns share a host's network cards with those of the
/// other stages on it.
double StageCosts::own_ring(double bytes, int replicas, bool inter) const {
  double load = 1;
  if (inter && grid_.columns > 1) {
    const double stages_on_host =
        static_cast<double>(cluster_.devices_per_host) / (replicas * grid_.unit);
    load = std::max(1.0, stages_on_host / cluster_.links_per_host);
  }
  return ring(bytes * load, replicas * grid_.step(), inter);
}

StageTime StageCosts::time(int first, int last, int replicas, const LinkClasses& classes) const {
  RangeCosts::Work work = tables_[static_cast<size_t>(replicas - 1)]->work(first, last);
  work.forward_ns *= classes.slowdown;
  work.backward_ns *= classes.slowdown;
  const RangeCosts::Border& border = ranges_.border(first, last);
  const RangeCosts::Parameters& params = ranges_.parameters(first, last);
  const auto share = static_cast<double>(rows(replicas));
  const auto moved = [&](bool any, const cost::Size& size, bool inter) {
    return any ? transfer(size.at(share), replicas, inter) : 0.0;
  };
  const double in = moved(border.enters, border.in, classes.in_inter);
  const double out = moved(border.leaves, border.out, classes.out_inter);
  const double in_grad = moved(border.enters_grad, border.in_grad, classes.in_inter);
  const double out_grad = moved(border.leaves_grad, border.out_grad, classes.out_inter);

  StageTime time;
  time.forward_ns = work.forward_ns + (in + out) / 2;
  time.backward_ns = work.backward_ns + (in_grad + out_grad) / 2;
  time.recompute_ns = work.forward_ns;
  time.compute_ns = work.forward_ns + work.backward_ns;
  time.transfer_ns = std::max({in, out, in_grad, out_grad});

  // Buckets become ready during the last backward and run one after the other; the end is linear in
  // the first bucket that never waits, so it is decided by the first or by the last bucket.
  const double buckets = request_.reduction_buckets;
  const double bucket = own_ring(params.own_gradient_bytes / buckets, replicas, classes.ring_inter);
  time.reduce_ns = std::max(bucket, buckets * bucket - work.backward_ns * (1 - 1 / buckets));
  if (params.tied_gradient_bytes > 0) {
    time.reduce_ns +=
        ring(params.tied_gradient_bytes, replicas * grid_.step() + 1, cluster_.hosts > 1);
  }
  return time;
}

double StageCosts::optimizer_bytes(int first, int last, int replicas) const {
  return ranges_.parameters(first, last).optimizer_bytes *
         optimizer_share(request_, replicas * grid_.step());
}

StageAccount StageCosts::account(int first, int last, int replicas,
                                 const RangeCosts::Held& held) const {
  const RangeCosts::Border& border = ranges_.border(first, last);
  const auto share = static_cast<double>(rows(replicas));
  return {
      .state_bytes = ranges_.parameters(first, last).bytes + optimizer_bytes(first, last, replicas),
      .gradient_bytes = held.gradient_bytes,
      .saved_bytes = held.saved_bytes,
      .first_bytes = held.first_bytes,
      .later_bytes = held.later_bytes,
      .graph_in_bytes = border.graph_in.at(share),
      .in_bytes = border.in.at(share),
      .out_bytes = border.out.at(share),
      .in_gradient_bytes = border.in_grad.at(share),
      .out_gradient_bytes = border.out_grad.at(share)};
}

double StageCosts::peak_bytes(int first, int last, int replicas, bool recompute, int64_t in_flight,
                              const RangeCosts::Held& held) const {
  if (!ranges_.by_moments()) {
    return memory(first, last, replicas, recompute, in_flight, held).peak_bytes();
  }
  return partition::peak_bytes(account(first, last, replicas, held), recompute, in_flight,
                               micro_batches_);
}

StageMemory StageCosts::memory(int first, int last, int replicas, bool recompute, int64_t in_flight,
                               const RangeCosts::Held& held) const {
  const RangeCosts::Parameters& params = ranges_.parameters(first, last);
  const RangeCosts::Border& border = ranges_.border(first, last);
  const RangeCosts::Work work = tables_[static_cast<size_t>(replicas - 1)]->work(first, last);
  const auto share = static_cast<double>(rows(replicas));
  const double in = border.in.at(share), out = border.out.at(share);
  const auto count = static_cast<double>(in_flight);

  StageMemory memory;
  memory.param_bytes = params.bytes;
  memory.gradient_bytes = params.gradient_bytes;
  memory.optimizer_bytes = optimizer_bytes(first, last, replicas);
  const double saved = ranges_.by_moments() ? held.saved_bytes : work.saved_bytes;
  memory.activation_bytes =
      recompute ? count * (in + border.graph_in.at(share)) + saved : count * saved;
  memory.buffer_bytes = 2 * (in + out);
  memory.workspace_bytes = work.workspace_bytes;
  if (ranges_.by_moments()) {
    // The kinds as far as they go; what is sent and received fills the rest.
    double rest = peak_bytes(first, last, replicas, recompute, in_flight, held) -
                  memory.param_bytes - memory.optimizer_bytes;
    for (double* kind :
         {&memory.activation_bytes, &memory.gradient_bytes, &memory.workspace_bytes}) {
      *kind = std::min(*kind, rest);
      rest -= *kind;
    }
    memory.buffer_bytes = rest;
  }
  return memory;
}

InFlight StageCosts::in_flight(int first, int last, int replicas,
                               const RangeCosts::Held& held) const {
  const StageAccount account =
      ranges_.by_moments() ? this->account(first, last, replicas, held) : StageAccount{};
  const auto peak = [&](bool recompute, int64_t count) {
    return ranges_.by_moments()
               ? partition::peak_bytes(account, recompute, count, micro_batches_)
               : memory(first, last, replicas, recompute, count, held).peak_bytes();
  };
  // Memory grows by the same bytes with each micro-batch, by version 2 but for the last ones. The
  // quotient may be off through that and rounding, so the count is settled by the memory itself.
  const auto most = [&](bool recompute) -> int64_t {
    const double one = peak(recompute, 1);
    if (one > available_bytes_) return 0;
    if (peak(recompute, micro_batches_) <= available_bytes_) return micro_batches_;
    const double step = peak(recompute, 2) - one;
    auto count =
        static_cast<int64_t>(std::clamp(1 + (available_bytes_ - one) / std::max(step, 1e-9), 1.0,
                                        static_cast<double>(micro_batches_ - 1)));
    while (peak(recompute, count + 1) <= available_bytes_) ++count;
    while (peak(recompute, count) > available_bytes_) --count;
    return count;
  };
  InFlight room;
  if (request_.recompute != Recompute::always) room.plain = most(false);
  if (request_.recompute != Recompute::never && room.plain < micro_batches_) {
    room.recompute = most(true);
  }
  return room;
}

double StageCosts::least_bytes(int first, int last, int replicas,
                               const RangeCosts::Held& held) const {
  const RangeCosts::Parameters& params = ranges_.parameters(first, last);
  const double state = params.bytes + optimizer_bytes(first, last, replicas);
  if (ranges_.by_moments()) return state + std::max(held.first_bytes, held.gradient_bytes);
  const RangeCosts::Work work = tables_[static_cast<size_t>(replicas - 1)]->work(first, last);
  return state + params.gradient_bytes + work.saved_bytes + work.workspace_bytes;
}

}  // namespace rannc::partition
