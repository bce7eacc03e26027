#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "plan/check_durations.h"
#include "rannc/plan/ahead.h"
#include "rannc/plan/simulate.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// A transfer in one direction.
using Way = std::pair<int, Direction>;
/// A stream of communications: of transfers in one direction, or of sums over these ranks.
using Lane = std::pair<int, std::vector<Rank>>;

struct RankState {
  size_t next = 0;                 // index into its actions
  size_t next_issue = 0;           // index into its issues
  double clock_ns = 0;             // when its last computation ended; within one, where it is
  bool computes = false;           // action `next` is a computation that has begun
  double left_ns = 0;              // of it
  double duration_ns = 0;          // of it
  double issued_ns = 0;            // when the host has issued the last one
  int gathers_left = 0;            // of it
  std::map<Way, double> ready_ns;  // sent rows, and the memory of what is received
  std::vector<Way> receives;       // that the next computation waits for
  std::map<int, double> backward_end_ns;  // by stage
  std::map<int, Span> sums;               // by reduction: its buckets
  double sums_end_ns = 0;                 // of all that the end of the phase waits for
  std::map<int, int> in_flight;           // by stage
  std::map<Lane, double> lanes;           // when the last communication ends
  std::vector<Span> spans;
};

/// Goes through the order, and lets each rank compute until it issues the next communication: what
/// that needs comes before it (verify() proves it).
class InOrder {
 public:
  InOrder(const Program& program, const Durations& durations)
      : program_(program), durations_(durations), ranks_(program.actions.size()) {
    result_.peak_in_flight.assign(program.stage_ranks.size(), 0);
    count_pieces();
  }

  Simulation run() {
    for (size_t place = 0; place < program_.order.size(); ++place) communicate(place);
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      advance(rank, program_.actions[rank].size());
      end_phase(rank);
      RankState& state = ranks_[rank];
      double& last_ns = result_.ends_ns.emplace_back(state.clock_ns);
      for (const auto& [lane, end_ns] : state.lanes) last_ns = std::max(last_ns, end_ns);
      result_.end_ns = std::max(result_.end_ns, last_ns);
      std::ranges::stable_sort(state.spans, {}, &Span::begin_ns);
      result_.spans.insert(result_.spans.end(), state.spans.begin(), state.spans.end());
    }
    return std::move(result_);
  }

 private:
  /// What goes from one stage to another of a micro-batch is told as one duration, and is shared
  /// out over the messages of the rank that has most of them.
  void count_pieces() {
    for (const Transfer& transfer : program_.transfers) {
      if (!takes_time(transfer)) continue;
      ++pieces_[piece_of(transfer, /*sender=*/true)];
      ++pieces_[piece_of(transfer, /*sender=*/false)];
    }
  }

  static std::tuple<bool, Rank, int, int, int> piece_of(const Transfer& transfer, bool sender) {
    return {sender, sender ? transfer.from : transfer.to, transfer.from_stage, transfer.to_stage,
            transfer.micro_batch};
  }

  /// The user's side takes no time, as in simulate(), but a place.
  static bool takes_time(const Transfer& transfer) {
    return transfer.from_stage != kUser && transfer.to_stage != kUser &&
           transfer.from != transfer.to;
  }

  [[nodiscard]] double duration_of(int place, Direction direction) const {
    const Transfer& transfer = program_.transfers[place];
    if (const auto& own = durations_.message_ns[static_cast<size_t>(direction)]; !own.empty()) {
      return own[place];
    }
    if (!takes_time(transfer)) return 0;
    const bool own_times = direction == Direction::backward && !durations_.transfer_back_ns.empty();
    const auto& times = own_times ? durations_.transfer_back_ns : durations_.transfer_ns;
    const int pieces = std::max(pieces_.at(piece_of(transfer, /*sender=*/true)),
                                pieces_.at(piece_of(transfer, /*sender=*/false)));
    return times[transfer.from_stage][transfer.to_stage] / pieces;
  }

  [[nodiscard]] Rank receiver_of(const Way& way) const {
    const Transfer& transfer = program_.transfers[way.first];
    return way.second == Direction::forward ? transfer.to : transfer.from;
  }

  void communicate(size_t place) {
    const Communication& one = program_.order[place];
    std::vector<Rank> ranks;
    Lane lane;
    double duration_ns = 0;
    switch (one.kind) {
      case CommunicationKind::transfer: {
        const Transfer& transfer = program_.transfers[one.index];
        ranks = {transfer.from};
        if (transfer.to != transfer.from) ranks.push_back(transfer.to);
        lane = {static_cast<int>(one.direction), {}};
        duration_ns = duration_of(one.index, one.direction);
        break;
      }
      case CommunicationKind::statistics:
      case CommunicationKind::buffers:
        ranks = program_.stage_ranks[one.index];
        break;
      case CommunicationKind::outputs:
        for (Rank rank = 0; rank < program_.ranks(); ++rank) ranks.push_back(rank);
        break;
      case CommunicationKind::bucket:
        ranks = program_.reductions[one.index].ranks;
        duration_ns = durations_.reduce_ns[one.index] * share_of(one);
        break;
    }
    if (one.kind != CommunicationKind::transfer) {
      std::ranges::sort(ranks);
      lane = {2, ranks};
    }
    double begin_ns = 0;
    for (Rank rank : ranks) {
      const double ready_ns = issue(rank, place, one);
      begin_ns = std::max({begin_ns, ready_ns, ranks_[rank].lanes[lane]});
    }
    const bool stays = ranks.size() == 1;  // a copy inside of the rank
    for (Rank rank : ranks) end(rank, one, lane, begin_ns, begin_ns + (stays ? 0 : duration_ns));
  }

  /// Of a reduction's bytes that are in this bucket.
  [[nodiscard]] double share_of(const Communication& bucket) const {
    const auto& buckets = program_.buckets[bucket.index];
    return share(buckets, bucket.part + 1) - share(buckets, bucket.part);
  }

  /// ... in those before bucket `end`.
  static double share(const std::vector<Bucket>& buckets, int end) {
    double all = 0, before = 0;
    for (int part = 0; part < static_cast<int>(buckets.size()); ++part) {
      all += static_cast<double>(buckets[part].bytes);
      if (part < end) before += static_cast<double>(buckets[part].bytes);
    }
    return all == 0 ? static_cast<double>(end) / static_cast<double>(buckets.size()) : before / all;
  }

  /// The rank comes to it; returns when what it needs on this rank is there.
  double issue(Rank rank, size_t place, const Communication& one) {
    RankState& state = ranks_[rank];
    const std::vector<Issue>& issues = program_.issues[rank];
    RANNC_CHECK(state.next_issue < issues.size() &&
                    static_cast<size_t>(issues[state.next_issue].place) == place,
                fmt::format("rank {} does not issue communication {} next", rank, place));
    const Issue& mine = issues[state.next_issue];
    advance(rank, static_cast<size_t>(mine.action));
    if (mine.inside) begin_computation(rank);
    ++state.next_issue;
    switch (one.kind) {
      case CommunicationKind::transfer: {
        const auto ready = state.ready_ns.find({one.index, one.direction});
        return ready == state.ready_ns.end() ? state.clock_ns : ready->second;
      }
      case CommunicationKind::statistics: {
        // None where the rank has no such computation.
        if (!state.computes || state.gathers_left == 0) return state.clock_ns;
        const double part_ns = state.left_ns / (state.gathers_left + 1);
        state.clock_ns += part_ns;
        state.left_ns -= part_ns;
        --state.gathers_left;
        return state.clock_ns;
      }
      case CommunicationKind::buffers:
      case CommunicationKind::outputs:
        return state.clock_ns;
      case CommunicationKind::bucket:
        return complete_at(state, rank, one);
    }
    RANNC_CHECK(false, "a communication of unknown kind");
  }

  /// When the gradients of a bucket are complete on a rank.
  double complete_at(const RankState& state, Rank rank, const Communication& bucket) const {
    const Reduction& reduction = program_.reductions[bucket.index];
    double ready_ns = 0;
    for (int stage : reduction.stages) {
      const auto ended = state.backward_end_ns.find(stage);
      if (ended != state.backward_end_ns.end()) ready_ns = std::max(ready_ns, ended->second);
    }
    if (!state.computes) return ready_ns;
    const Action& action = program_.actions[rank][state.next];
    if (!std::ranges::binary_search(reduction.stages, action.stage)) return ready_ns;
    const double done_ns = state.duration_ns - state.left_ns;
    const double share_ns =
        state.duration_ns * share(program_.buckets[bucket.index], bucket.part + 1);
    return std::max(ready_ns, state.clock_ns + std::max(0.0, share_ns - done_ns));
  }

  void end(Rank rank, const Communication& one, const Lane& lane, double begin_ns, double end_ns) {
    RankState& state = ranks_[rank];
    state.lanes[lane] = end_ns;
    switch (one.kind) {
      case CommunicationKind::transfer: {
        const Way way{one.index, one.direction};
        if (receiver_of(way) == rank) arrived_ns_[way] = end_ns;
        return;
      }
      case CommunicationKind::statistics:
        state.clock_ns = std::max(state.clock_ns, end_ns);
        return;
      case CommunicationKind::bucket: {
        Span& span = state.sums.try_emplace(one.index, Span{rank, 0, -1, -1}).first->second;
        if (span.begin_ns < 0) span.begin_ns = begin_ns;
        span.end_ns = std::max(span.end_ns, end_ns);
        state.sums_end_ns = std::max(state.sums_end_ns, end_ns);
        return;
      }
      case CommunicationKind::buffers:
      case CommunicationKind::outputs:
        state.sums_end_ns = std::max(state.sums_end_ns, end_ns);
        return;
    }
  }

  /// Runs what comes before action `until`.
  void advance(Rank rank, size_t until) {
    RankState& state = ranks_[rank];
    const std::vector<Action>& actions = program_.actions[rank];
    while (state.next < until) {
      const Action& action = actions[state.next];
      const Way way{action.index, action.direction};
      switch (action.kind) {
        case ActionKind::forward:
        case ActionKind::backward:
          begin_computation(rank);
          end_computation(state, action);
          break;
        case ActionKind::send:
          state.ready_ns.try_emplace(way, state.clock_ns);
          break;
        case ActionKind::receive:
          state.receives.push_back(way);
          if (arrived_ns_.contains(way)) take_receives(rank);
          break;
        case ActionKind::release:
          --state.in_flight[action.stage];
          break;
        case ActionKind::return_outputs:
          end_phase(rank);
          break;
        case ActionKind::reduce_gradients:
          if (const auto sum = state.sums.find(action.index); sum != state.sums.end()) {
            sum->second.action = static_cast<int>(state.next);
          } else {
            state.sums.insert({action.index, {rank, static_cast<int>(state.next), -1, -1}});
          }
          break;
        case ActionKind::sync_buffers:
        case ActionKind::reduce_outputs:
          break;
      }
      ++state.next;
    }
  }

  void take_receives(Rank rank) {
    RankState& state = ranks_[rank];
    for (const Way& way : std::exchange(state.receives, {})) {
      const Transfer& transfer = program_.transfers[way.first];
      if (transfer.from == transfer.to) continue;
      const auto arrived = arrived_ns_.find(way);
      if (arrived == arrived_ns_.end()) {
        throw PlanError(
            fmt::format("the program cannot end: rank {} computes with value {} of micro-batch {} "
                        "before its place in the order of communication",
                        rank, transfer.value.index, transfer.micro_batch));
      }
      state.clock_ns = std::max(state.clock_ns, arrived->second);
    }
  }

  /// Nothing where it has begun.
  void begin_computation(Rank rank) {
    RankState& state = ranks_[rank];
    if (state.computes) return;
    take_receives(rank);
    const std::vector<Action>& actions = program_.actions[rank];
    const Action& action = actions[state.next];
    const bool forward = action.kind == ActionKind::forward;
    if (forward) {
      int& in_flight = ++state.in_flight[action.stage];
      int& peak = result_.peak_in_flight[action.stage];
      peak = std::max(peak, in_flight);
    }
    state.computes = true;
    state.duration_ns = state.left_ns =
        durations_.computed_ns.empty()
            ? (forward ? durations_.forward_ns : durations_.backward_ns)[action.stage]
            : durations_.computed_ns[rank][state.next];
    if (!durations_.issued_ns.empty()) {
      state.clock_ns = std::max(state.clock_ns, state.issued_ns);
      state.issued_ns += durations_.issued_ns[rank][state.next];
    }
    state.gathers_left = 0;
    state.spans.push_back({rank, static_cast<int>(state.next), state.clock_ns, 0});
    size_t following = state.next + 1;
    while (following < actions.size() && !is_computation(actions[following]) &&
           actions[following].kind != ActionKind::return_outputs) {
      ++following;
    }
    // Now what comes before the next computation gets its memory.
    const std::vector<Issue>& issues = program_.issues[rank];
    for (size_t index = state.next_issue; index < issues.size(); ++index) {
      const Communication& one = program_.order[issues[index].place];
      const auto at = static_cast<size_t>(issues[index].action);
      if (at > following || (at == following && issues[index].inside)) break;
      if (at == state.next && one.kind == CommunicationKind::statistics) ++state.gathers_left;
      if (one.kind != CommunicationKind::transfer) continue;
      const Way way{one.index, one.direction};
      if (receiver_of(way) == rank) state.ready_ns.try_emplace(way, state.clock_ns);
    }
  }

  void end_computation(RankState& state, const Action& action) {
    state.clock_ns = std::max(state.clock_ns + std::exchange(state.left_ns, 0), state.issued_ns);
    state.computes = false;
    state.spans.back().end_ns = state.clock_ns;
    if (action.kind == ActionKind::backward) {
      state.backward_end_ns[action.stage] = state.clock_ns;
    }
  }

  void end_phase(Rank rank) {
    RankState& state = ranks_[rank];
    take_receives(rank);
    state.clock_ns = std::max(state.clock_ns, state.sums_end_ns);
    for (const auto& [reduction, span] : std::exchange(state.sums, {})) {
      if (span.begin_ns >= 0) state.spans.push_back(span);
    }
  }

  const Program& program_;
  const Durations& durations_;
  std::vector<RankState> ranks_;
  std::map<std::tuple<bool, Rank, int, int, int>, int> pieces_;
  std::map<Way, double> arrived_ns_;
  Simulation result_;
};

}  // namespace

Simulation simulate_in_order(const Program& program, const Durations& durations) {
  check_durations(program, durations);
  return InOrder(program, durations).run();
}

}  // namespace rannc::plan
