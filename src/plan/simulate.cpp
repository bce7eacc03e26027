#include "rannc/plan/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "plan/check_durations.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The transfers that one rank sends from one stage to another in one direction follow each other.
struct Channel {
  int micro_batch = -1;
  double free_ns = 0;  // when the transfer of the micro-batch before ended
  double end_ns = 0;   // when the current one ends
};

struct RankState {
  size_t next = 0;      // index into its actions
  double clock_ns = 0;  // when its last action ended
  double reduced_ns = 0;
  bool waits = false;
  std::map<int, double> backward_end_ns;  // by stage
  std::map<int, int> in_flight;           // by stage
  std::map<std::tuple<int, int, Direction>, Channel> channels;
  std::vector<Span> spans;
};

/// An action that several ranks begin together.
struct Meeting {
  std::vector<Rank> present;
  double ready_ns = 0;
};

class Simulator {
 public:
  Simulator(const Program& program, const Durations& durations)
      : program_(program), durations_(durations), ranks_(program.actions.size()) {
    check_durations(program, durations);
    for (auto& arrivals : arrivals_) arrivals.assign(program.transfers.size(), kNever);
    result_.peak_in_flight.assign(program.stage_ranks.size(), 0);
  }

  Simulation run() {
    for (Rank rank = 0; rank < program_.ranks(); ++rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const Rank rank = runnable_.back();
      runnable_.pop_back();
      while (ranks_[rank].next < program_.actions[rank].size() && step(rank)) ++ranks_[rank].next;
    }
    check_all_ended();
    for (RankState& state : ranks_) {
      std::ranges::stable_sort(state.spans, {}, &Span::begin_ns);
      result_.spans.insert(result_.spans.end(), state.spans.begin(), state.spans.end());
    }
    for (const Span& span : result_.spans) result_.end_ns = std::max(result_.end_ns, span.end_ns);
    return std::move(result_);
  }

 private:
  [[nodiscard]] const Action& next_action(Rank rank) const {
    return program_.actions[rank][ranks_[rank].next];
  }

  /// Runs the next action of `rank`; false when it must wait.
  bool step(Rank rank) {
    RankState& state = ranks_[rank];
    const Action& action = next_action(rank);
    switch (action.kind) {
      case ActionKind::forward: {
        int& in_flight = ++state.in_flight[action.stage];
        int& peak = result_.peak_in_flight[action.stage];
        peak = std::max(peak, in_flight);
        compute(state, rank, durations_.forward_ns[action.stage]);
        return true;
      }
      case ActionKind::backward:
        compute(state, rank, durations_.backward_ns[action.stage]);
        state.backward_end_ns[action.stage] = state.clock_ns;
        return true;
      case ActionKind::release:
        --state.in_flight[action.stage];
        return true;
      case ActionKind::return_outputs:
        return true;
      case ActionKind::send:
        send(state, action);
        return true;
      case ActionKind::receive: {
        const double arrival = arrivals_[static_cast<int>(action.direction)][action.index];
        state.waits = arrival == kNever;
        if (!state.waits) state.clock_ns = std::max(state.clock_ns, arrival);
        return !state.waits;
      }
      case ActionKind::sync_buffers:
        return meet(rank, action, static_cast<size_t>(program_.mesh(action.stage).replicas()),
                    state.clock_ns, 0);
      case ActionKind::reduce_outputs:
        return meet(rank, action, ranks_.size(), state.clock_ns, 0);
      case ActionKind::reduce_gradients: {
        const Reduction& reduction = program_.reductions[action.index];
        double ready_ns = state.reduced_ns;
        for (int stage : reduction.stages) {
          const auto end = state.backward_end_ns.find(stage);
          if (end != state.backward_end_ns.end()) ready_ns = std::max(ready_ns, end->second);
        }
        return meet(rank, action, reduction.ranks.size(), ready_ns,
                    durations_.reduce_ns[action.index]);
      }
    }
    RANNC_CHECK(false, "an action of unknown kind");
  }

  void add_span(RankState& state, Rank rank, double begin_ns, double end_ns) {
    state.spans.push_back({rank, static_cast<int>(state.next), begin_ns, end_ns});
  }

  void compute(RankState& state, Rank rank, double duration_ns) {
    add_span(state, rank, state.clock_ns, state.clock_ns + duration_ns);
    state.clock_ns += duration_ns;
  }

  void send(RankState& state, const Action& action) {
    const Transfer& transfer = program_.transfers[action.index];
    const bool forward = action.direction == Direction::forward;
    double arrival = state.clock_ns;
    // The user's side and copies inside a rank take no time.
    if (transfer.from_stage != kUser && transfer.to_stage != kUser &&
        transfer.from != transfer.to) {
      const bool own_times = !forward && !durations_.transfer_back_ns.empty();
      const auto& times = own_times ? durations_.transfer_back_ns : durations_.transfer_ns;
      Channel& channel = state.channels[{transfer.from_stage, transfer.to_stage, action.direction}];
      if (channel.micro_batch != transfer.micro_batch) {
        channel.micro_batch = transfer.micro_batch;
        channel.free_ns = channel.end_ns;
      }
      arrival =
          std::max(state.clock_ns, channel.free_ns) + times[transfer.from_stage][transfer.to_stage];
      channel.end_ns = std::max(channel.end_ns, arrival);
    }
    arrivals_[static_cast<int>(action.direction)][action.index] = arrival;
    const Rank receiver = forward ? transfer.to : transfer.from;
    if (!ranks_[receiver].waits) return;
    const Action& wanted = next_action(receiver);
    if (wanted.index != action.index || wanted.direction != action.direction) return;
    ranks_[receiver].waits = false;
    runnable_.push_back(receiver);
  }

  /// True for the last of the ranks; the others wait until then, and go on with it.
  bool meet(Rank rank, const Action& action, size_t expected, double ready_ns, double duration_ns) {
    Meeting& meeting = meetings_[{action.kind, action.stage, action.index}];
    meeting.present.push_back(rank);
    meeting.ready_ns = std::max(meeting.ready_ns, ready_ns);
    if (meeting.present.size() < expected) return false;

    const double end_ns = meeting.ready_ns + duration_ns;
    for (Rank other : meeting.present) {
      RankState& state = ranks_[other];
      if (action.kind == ActionKind::reduce_gradients) {
        add_span(state, other, meeting.ready_ns, end_ns);
        state.reduced_ns = end_ns;
      }
      state.clock_ns = std::max(state.clock_ns, end_ns);
      if (other == rank) continue;
      ++state.next;
      runnable_.push_back(other);
    }
    meeting = {};
    return true;
  }

  [[nodiscard]] std::string describe_wait(Rank rank) const {
    const Action& action = next_action(rank);
    const auto others = [](const std::vector<Rank>& present) {
      return fmt::format("only {} of its ranks came", present.size());
    };
    const auto meeting = meetings_.find({action.kind, action.stage, action.index});
    switch (action.kind) {
      case ActionKind::receive: {
        const Transfer& transfer = program_.transfers[action.index];
        const bool forward = action.direction == Direction::forward;
        const int stage = forward ? transfer.from_stage : transfer.to_stage;
        return fmt::format(
            "rank {} waits for the {} of value {} of micro-batch {} from {} on rank {}", rank,
            forward ? "rows" : "gradient", transfer.value.index, transfer.micro_batch,
            stage == kUser ? "the user" : fmt::format("stage {}", stage),
            forward ? transfer.from : transfer.to);
      }
      case ActionKind::sync_buffers:
        return fmt::format("rank {} waits in the buffers of stage {}: {}", rank, action.stage,
                           others(meeting->second.present));
      case ActionKind::reduce_outputs:
        return fmt::format("rank {} waits in the scalar outputs: {}", rank,
                           others(meeting->second.present));
      case ActionKind::reduce_gradients:
        return fmt::format("rank {} waits in reduction {}: {}", rank, action.index,
                           others(meeting->second.present));
      default:
        RANNC_CHECK(false, fmt::format("rank {} stopped at an action that never waits", rank));
    }
  }

  void check_all_ended() const {
    constexpr int kShown = 8;
    std::string waits;
    int blocked = 0;
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      if (ranks_[rank].next == program_.actions[rank].size()) continue;
      if (++blocked <= kShown) waits += "\n  " + describe_wait(rank);
    }
    if (blocked == 0) return;
    if (blocked > kShown) waits += fmt::format("\n  and {} more ranks wait", blocked - kShown);
    throw PlanError("the program cannot end:" + waits);
  }

  const Program& program_;
  const Durations& durations_;
  std::vector<RankState> ranks_;
  std::vector<double> arrivals_[2];  // [direction][transfer]
  std::map<std::tuple<ActionKind, int, int>, Meeting> meetings_;
  std::vector<Rank> runnable_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const Program& program, const Durations& durations) {
  return Simulator(program, durations).run();
}

}  // namespace rannc::plan
