#include "plan/lower/times.h"

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

constexpr int64_t kNotYet = -1;

/// Where a plan predicts nothing.
/// tuned by: a convention: gradients for inputs and for parameters cost about a forward each.
/// without it: plans that somebody wrote by hand would have no order of communication.
constexpr int64_t kForwardTime = 1;
constexpr int64_t kBackwardTime = 2;

/// Predictions beyond it (17 minutes) are taken as it, so that the times of a call can be added up.
constexpr int64_t kLongestTime = 1'000'000'000'000;

/// Between the begin of a pass, its gathers and its end.
/// tuned by: a convention: the least that has a whole number inside.
/// without it: with 1, no bucket of a hand-written plan would end between two gathers.
constexpr int64_t kLeastPart = 2;

size_t at(Direction direction) { return static_cast<size_t>(direction); }

int64_t whole_time(int64_t predicted) { return std::clamp<int64_t>(predicted, 1, kLongestTime); }

struct RankState {
  size_t next = 0;  // index into its actions
  int64_t clock = 0;
  int issue_at = 0;               // after the last send or release
  bool returned = false;          // is past return_outputs
  bool computes = false;          // it has begun, and waits for a gather
  size_t gathered = 0;            // gathers of this computation that have ended
  const Action* waits = nullptr;  // a receive
};

/// A gather in progress.
struct Meeting {
  size_t present = 0;
  int64_t at = 0;
};

class Walk {
 public:
  Walk(const Program& program, const Plan& plan, const ir::Graph& graph, const Placement& placement)
      : program_(program), states_(program.actions.size()) {
    for (const Stage& stage : plan.stages) {
      const auto& predicted = stage.predicted;
      duration_[0].push_back(predicted ? whole_time(predicted->forward_ns) : kForwardTime);
      duration_[1].push_back(predicted ? whole_time(predicted->backward_ns) : kBackwardTime);
    }
    for (auto& times : times_.transfers) times.assign(program.transfers.size(), kNotYet);
    for (auto& gathers : times_.gathers) gathers.resize(plan.stages.size());
    times_.buffers.assign(plan.stages.size(), kNotYet);
    times_.ranks.resize(program.actions.size());
    add_gathers(graph, placement);
  }

  CallTimes run() {
    for (auto& arrivals : arrivals_) arrivals.assign(program_.transfers.size(), kNotYet);
    for (Rank rank = 0; rank < program_.ranks(); ++rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const Rank rank = runnable_.back();
      runnable_.pop_back();
      RankState& state = states_[rank];
      const std::vector<Action>& actions = program_.actions[rank];
      while (state.next < actions.size() && step(rank, actions[state.next])) ++state.next;
    }
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      RANNC_CHECK(states_[rank].next == program_.actions[rank].size(), "a program that ends");
      RankTimes& times = times_.ranks[rank];
      times.last_issue_at[1] = states_[rank].issue_at;
      if (states_[rank].returned) continue;
      times.returned_at = times.computations.size();
      times.last_issue_at[0] = times.last_issue_at[1];
    }
    return std::move(times_);
  }

 private:
  void add_gathers(const ir::Graph& graph, const Placement& placement) {
    for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
      if (!graph.nodes[index].whole_batch) continue;
      const int stage = placement.stage_of[index];
      if (stage == Placement::kCloned || program_.mesh(stage).replicas() < 2) continue;
      times_.gathers[0][stage].push_back({index, kNotYet});
      const bool goes_on = graph[graph.operands(ir::NodeId{index}).front()].requires_grad;
      if (program_.training && goes_on) times_.gathers[1][stage].push_back({index, kNotYet});
    }
    for (std::vector<Gather>& gathers : times_.gathers[1]) std::ranges::reverse(gathers);
    for (const size_t direction : {0, 1}) {
      times_.gather_ns[direction].resize(duration_[direction].size());
      for (size_t stage = 0; stage < duration_[direction].size(); ++stage) {
        const auto gathers = static_cast<int64_t>(times_.gathers[direction][stage].size());
        times_.gather_ns[direction][stage] =
            std::max(kLeastPart, duration_[direction][stage] / (gathers + 1));
        meetings_[direction].emplace_back(times_.gathers[direction][stage].size());
      }
    }
  }

  /// Runs the next action of `rank`; false when it must wait.
  bool step(Rank rank, const Action& action) {
    RankState& state = states_[rank];
    const auto past = static_cast<int>(state.next) + 1;
    switch (action.kind) {
      case ActionKind::forward:
        return compute(rank, action, /*forward=*/true);
      case ActionKind::backward:
        return compute(rank, action, /*forward=*/false);
      case ActionKind::release:
        state.issue_at = past;
        return true;
      case ActionKind::send:
        state.issue_at = past;
        send(state, action);
        return true;
      case ActionKind::receive:
        return receive(rank, action);
      case ActionKind::return_outputs: {
        RankTimes& times = times_.ranks[rank];
        times.returned_at = times.computations.size();
        times.last_issue_at[0] = state.issue_at;
        state.returned = true;
        state.issue_at = past;
        return true;
      }
      case ActionKind::sync_buffers:
        times_.buffers[action.stage] = std::max(times_.buffers[action.stage], state.clock);
        return true;
      case ActionKind::reduce_outputs:
        times_.outputs = std::max(times_.outputs, state.clock);
        return true;
      case ActionKind::reduce_gradients:
        return true;
    }
    RANNC_CHECK(false, "an action of unknown kind");
  }

  bool compute(Rank rank, const Action& action, bool forward) {
    RankState& state = states_[rank];
    std::vector<Computation>& computations = times_.ranks[rank].computations;
    const size_t direction = forward ? 0 : 1;
    if (!state.computes) {
      state.computes = true;
      state.gathered = 0;
      computations.push_back({.action = static_cast<int>(state.next),
                              .stage = action.stage,
                              .forward = forward,
                              .begin = state.clock,
                              .issue_at = state.issue_at});
    }
    const size_t gathers = times_.gathers[direction][action.stage].size();
    const int64_t part = times_.gather_ns[direction][action.stage];
    while (state.gathered < gathers) {
      if (!gather(rank, action.stage, direction, state.clock + part)) return false;
    }
    state.clock += gathers == 0 ? duration_[direction][action.stage] : part;
    computations.back().end = state.clock;
    state.computes = false;
    state.issue_at = static_cast<int>(state.next) + 1;
    return true;
  }

  /// True for the last of the replicas; the others wait until then, and go on with it.
  bool gather(Rank rank, int stage, size_t direction, int64_t now) {
    const size_t number = states_[rank].gathered;
    Meeting& meeting = meetings_[direction][stage][number];
    meeting.at = std::max(meeting.at, now);
    const StageMesh mesh = program_.mesh(stage);
    if (++meeting.present < static_cast<size_t>(mesh.replicas())) return false;
    times_.gathers[direction][stage][number].at = meeting.at;
    for (Rank other : mesh.ranks_of_place(*mesh.place_of(rank))) {
      states_[other].clock = meeting.at;
      ++states_[other].gathered;
      if (other != rank) runnable_.push_back(other);
    }
    return true;
  }

  void send(const RankState& state, const Action& action) {
    arrivals_[at(action.direction)][action.index] = state.clock;
    const Transfer& transfer = program_.transfers[action.index];
    const Rank receiver = action.direction == Direction::forward ? transfer.to : transfer.from;
    const Action* const wanted = states_[receiver].waits;
    if (wanted == nullptr || wanted->index != action.index ||
        wanted->direction != action.direction) {
      return;
    }
    states_[receiver].waits = nullptr;
    runnable_.push_back(receiver);
  }

  bool receive(Rank rank, const Action& action) {
    RankState& state = states_[rank];
    const int64_t arrival = arrivals_[at(action.direction)][action.index];
    if (arrival == kNotYet) {
      state.waits = &action;
      return false;
    }
    state.clock = std::max(state.clock, arrival);
    const Transfer& transfer = program_.transfers[action.index];
    const bool forward = action.direction == Direction::forward;
    const bool from_user = (forward ? transfer.from_stage : transfer.to_stage) == kUser;
    times_.transfers[at(action.direction)][action.index] = from_user ? begin_before(rank) : arrival;
    return true;
  }

  /// When the computation before the next one begins, of those on the same side of return_outputs.
  [[nodiscard]] int64_t begin_before(Rank rank) const {
    const RankTimes& times = times_.ranks[rank];
    const size_t first = states_[rank].returned ? times.returned_at : 0;
    return times.computations.size() > first ? times.computations.back().begin : 0;
  }

  const Program& program_;
  std::vector<int64_t> duration_[2];  // [direction][stage]
  std::vector<RankState> states_;
  std::vector<int64_t> arrivals_[2];               // [direction][transfer]
  std::vector<std::vector<Meeting>> meetings_[2];  // [direction][stage][gather]
  std::vector<Rank> runnable_;
  CallTimes times_;
};

}  // namespace

CallTimes call_times(const Program& program, const Plan& plan, const ir::Graph& graph,
                     const Placement& placement) {
  return Walk(program, plan, graph, placement).run();
}

int64_t time_at(const Computation& computation, int64_t share) {
  const int64_t duration = computation.end - computation.begin;
  return computation.begin + (duration * share + kWholeShare - 1) / kWholeShare;
}

}  // namespace rannc::plan
