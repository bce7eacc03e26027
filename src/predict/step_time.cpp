#include "rannc/predict/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "rannc/plan/simulate.h"
#include "rannc/util/error.h"

namespace rannc::predict {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Direction;
using plan::kUser;
using plan::Rank;

constexpr double kNever = std::numeric_limits<double>::infinity();

/// What each stage costs on one of its ranks.
class Stages {
 public:
  Stages(const plan::Plan& plan, const cost::GraphProfile& profile, const StepCosts& costs)
      : profile_(profile), costs_(costs) {
    std::unordered_map<std::string_view, uint32_t> index;
    for (uint32_t i = 0; i < profile.nodes.size(); ++i) index.emplace(profile.nodes[i].name, i);
    for (const plan::Stage& stage : plan.stages) {
      std::vector<uint32_t> nodes;
      std::set<uint32_t> params;
      for (const std::string& name : stage.nodes) {
        const auto found = index.find(name);
        RANNC_CHECK(found != index.end(), fmt::format("node '{}' is not in the profile", name));
        nodes.push_back(found->second);
        const std::vector<uint32_t>& used = profile.nodes[found->second].params;
        params.insert(used.begin(), used.end());
      }
      nodes_.push_back(std::move(nodes));
      params_.push_back(std::move(params));
      std::vector<uint32_t>& again = again_.emplace_back();
      if (stage.recompute) again = nodes_.back();
      for (const std::vector<std::string>& segment : stage.segments) {
        for (const std::string& name : segment) again.push_back(index.at(name));
      }
    }
  }

  [[nodiscard]] double forward_ns(size_t stage, int64_t rows) const {
    return rows == 0 ? 0
                     : costs_.action_ns + sum(nodes_[stage], rows, &cost::ProfileNode::forward_ns);
  }

  /// `first`: of its stage, whose gradients need not be added to others.
  [[nodiscard]] double backward_ns(size_t stage, int64_t rows, bool first) const {
    if (rows == 0) return 0;
    double ns = costs_.action_ns + sum(nodes_[stage], rows, &cost::ProfileNode::backward_ns);
    if (!again_[stage].empty()) {
      ns += costs_.action_ns + sum(again_[stage], rows, &cost::ProfileNode::forward_ns);
    }
    if (!first) ns += added_bytes(stage) * costs_.accumulate_ns_per_byte;
    return ns;
  }

  /// What the host takes to issue them to an accelerator.
  [[nodiscard]] double forward_host_ns(size_t stage, int64_t rows) const {
    return rows == 0 ? 0 : sum(nodes_[stage], rows, &cost::ProfileNode::forward_host_ns);
  }
  [[nodiscard]] double backward_host_ns(size_t stage, int64_t rows) const {
    if (rows == 0) return 0;
    return sum(nodes_[stage], rows, &cost::ProfileNode::backward_host_ns) +
           sum(again_[stage], rows, &cost::ProfileNode::forward_host_ns);
  }

  /// The optimizer's time for the parameters of `stages`, each once.
  [[nodiscard]] double optimizer_ns(const std::set<int>& stages) const {
    if (costs_.optimizer_ns.empty()) return 0;
    std::set<uint32_t> params;
    for (int stage : stages) {
      params.insert(params_[static_cast<size_t>(stage)].begin(),
                    params_[static_cast<size_t>(stage)].end());
    }
    double ns = 0;
    for (uint32_t param : params) ns += costs_.optimizer_ns.at(param);
    return ns;
  }

 private:
  [[nodiscard]] double sum(const std::vector<uint32_t>& nodes, int64_t rows,
                           std::vector<double> cost::ProfileNode::*values) const {
    double total = 0;
    for (uint32_t node : nodes) {
      total += cost::optional_cost_at(profile_.nodes[node].*values, profile_.rows,
                                      static_cast<double>(rows));
    }
    return total;
  }

  /// The bytes of gradients that are made and then added.
  [[nodiscard]] double added_bytes(size_t stage) const {
    std::set<uint32_t> params;
    for (uint32_t node : nodes_[stage]) {
      if (profile_.nodes[node].adds_in_place) continue;
      params.insert(profile_.nodes[node].params.begin(), profile_.nodes[node].params.end());
    }
    double bytes = 0;
    for (uint32_t param : params) {
      if (profile_.params[param].trainable) bytes += profile_.params[param].bytes;
    }
    return bytes;
  }

  const cost::GraphProfile& profile_;
  const StepCosts& costs_;
  std::vector<std::vector<uint32_t>> nodes_;  // [stage]
  std::vector<std::set<uint32_t>> params_;    // [stage]
  std::vector<std::vector<uint32_t>> again_;  // [stage]: nodes that a backward runs once more
};

struct RankState {
  bool ended = false;
  size_t next = 0;     // index into its actions; their number: the optimizer step
  double work_ns = 0;  // left of what it computes now
  bool computes = false;
  double busy_ns = 0;
  double waits_until_ns = 0;  // kNever: for a message or for other ranks
  // With a clock of the host:
  bool issues = false;           // what it computes now, for the device
  double device_begin_ns = 0;    // when the device begins with it
  double device_ns = 0;          // when the device has done all that it was given
  std::set<int> stages;          // that it runs
  std::map<int, int> backwards;  // by stage
};

/// The actions of all ranks, as time passes.
class Walk {
 public:
  Walk(const plan::Program& program, const plan::Plan& plan, const ir::Graph& graph,
       const cost::GraphProfile& profile, const cost::Cluster& cluster, const StepCosts& costs)
      : program_(program),
        graph_(graph),
        cluster_(cluster),
        costs_(costs),
        shard_optimizer_(plan.shard_optimizer),
        two_clocks_(profile.has_host_times() && costs.measured.empty()),
        stages_(plan, profile, costs),
        ranks_(program.actions.size()) {
    for (int stage = 0; stage < program.stages(); ++stage) {
      for (Rank rank : program.stage_ranks[static_cast<size_t>(stage)]) {
        state(rank).stages.insert(stage);
      }
    }
  }

  StepTime run() {
    if (costs_.in_order) return run_in_order();
    while (true) {
      // What one rank sends may let another go on at once.
      do {
        progress_ = false;
        for (Rank rank = 0; rank < program_.ranks(); ++rank) advance(rank);
      } while (progress_);
      const double next = next_event_ns();
      if (next == kNever) break;
      pass(next - now_ns_);
    }
    StepTime time{.ns = now_ns_};
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      RANNC_CHECK(state(rank).ended, fmt::format("rank {} never ends its step", rank));
      time.idle_ns.push_back(std::max(time.ns - state(rank).busy_ns, 0.0));
    }
    return time;
  }

 private:
  /// By the simulator of plan, and then the optimizer's step on each rank.
  StepTime run_in_order() {
    const auto stages = static_cast<size_t>(program_.stages());
    plan::Durations durations{.forward_ns = std::vector<double>(stages),
                              .backward_ns = std::vector<double>(stages),
                              .transfer_ns = {stages, std::vector<double>(stages)},
                              .transfer_back_ns = {},
                              .reduce_ns = {}};
    for (const plan::Reduction& reduction : program_.reductions) {
      const double ns = ring_ns(reduction.ranks, bytes_of(reduction));
      durations.reduce_ns.push_back(shard_optimizer_ ? ns / 2 : ns);
    }
    for (const plan::Transfer& transfer : program_.transfers) {
      const bool moves = transfer.from != transfer.to;
      const cost::Link& link = link_between(transfer.from, transfer.to);
      for (std::vector<double>& times : durations.message_ns) {
        times.push_back(moves ? link.latency_ns +
                                    message_bytes(transfer) / link.bandwidth_bytes_per_s * 1e9
                              : 0);
      }
    }
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      std::vector<double>& computed = durations.computed_ns.emplace_back();
      std::vector<double> issued;
      for (state(rank).next = 0; state(rank).next < actions(rank).size(); ++state(rank).next) {
        const Action& action = actions(rank)[state(rank).next];
        const bool computes =
            action.kind == ActionKind::forward || action.kind == ActionKind::backward;
        computed.push_back(computes ? computed_ns(rank, action) : 0);
        issued.push_back(computes && two_clocks_ ? host_ns(rank, action) : 0);
      }
      if (two_clocks_) durations.issued_ns.push_back(std::move(issued));
    }
    const plan::Simulation simulation = plan::simulate_in_order(program_, durations);
    for (const plan::Span& span : simulation.spans) {
      const ActionKind kind = actions(span.rank)[static_cast<size_t>(span.action)].kind;
      if (kind == ActionKind::reduce_gradients) continue;
      state(span.rank).busy_ns += span.end_ns - span.begin_ns;
    }
    StepTime time;
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      const double after_ns = after_actions_ns(rank);
      state(rank).busy_ns += after_ns;
      time.ns = std::max(time.ns, simulation.ends_ns[static_cast<size_t>(rank)] + after_ns);
    }
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      time.idle_ns.push_back(std::max(time.ns - state(rank).busy_ns, 0.0));
    }
    return time;
  }

  [[nodiscard]] RankState& state(Rank rank) { return ranks_[static_cast<size_t>(rank)]; }
  [[nodiscard]] const std::vector<Action>& actions(Rank rank) const {
    return program_.actions[static_cast<size_t>(rank)];
  }

  /// Takes actions of `rank` until it computes or waits.
  void advance(Rank rank) {
    RankState& state = this->state(rank);
    while (!state.ended && !state.computes) {
      if (state.waits_until_ns > now_ns_) return;
      if (state.next == actions(rank).size()) {
        if (!device_is_done(state)) return;
        compute(state, after_actions_ns(rank));
      } else if (!begin(rank, actions(rank)[state.next])) {
        return;
      }
      progress_ = true;
      if (!state.computes) finish(rank);
    }
  }

  [[nodiscard]] double after_actions_ns(Rank rank) {
    const auto place = static_cast<size_t>(rank);
    return optimizer_ns(rank) + (costs_.around_ns.empty() ? 0 : costs_.around_ns.at(place));
  }

  /// The optimizer's step, and the parameters' way back to all ranks that share it.
  [[nodiscard]] double optimizer_ns(Rank rank) {
    const std::set<int>& stages = state(rank).stages;
    double ns = stages_.optimizer_ns(stages) / speed_of(rank);
    if (!shard_optimizer_ || stages.empty()) return ns;
    ns /= program_.mesh(*stages.begin()).replicas();
    for (const plan::Reduction& reduction : program_.reductions) {
      if (std::ranges::find(reduction.ranks, rank) == reduction.ranks.end()) continue;
      ns += ring_ns(reduction.ranks, bytes_of(reduction)) / 2;
    }
    return ns;
  }

  [[nodiscard]] double bytes_of(const plan::Reduction& reduction) const {
    double bytes = 0;
    for (ir::ValueId value : reduction.parameters) {
      bytes += static_cast<double>(graph_[value].bytes(1));
    }
    return bytes;
  }

  void compute(RankState& state, double ns) {
    state.work_ns = ns;
    state.computes = ns > 0;
  }

  [[nodiscard]] double speed_of(Rank rank) const {
    return cluster_.speed_of(cluster_.host_of(rank));
  }

  /// Of a forward or backward on its device, or on a host without one.
  [[nodiscard]] double computed_ns(Rank rank, const Action& action) {
    RankState& state = this->state(rank);
    if (!costs_.measured.empty()) {
      return costs_.measured.at(static_cast<size_t>(rank)).at(state.next).work_ns;
    }
    const auto stage = static_cast<size_t>(action.stage);
    const double ns =
        action.kind == ActionKind::forward
            ? stages_.forward_ns(stage, rows(rank, action))
            : stages_.backward_ns(stage, rows(rank, action), state.backwards[action.stage]++ == 0);
    return ns / speed_of(rank);
  }

  /// What the host takes to issue it.
  [[nodiscard]] double host_ns(Rank rank, const Action& action) const {
    const auto stage = static_cast<size_t>(action.stage);
    const double ns = action.kind == ActionKind::forward
                          ? stages_.forward_host_ns(stage, rows(rank, action))
                          : stages_.backward_host_ns(stage, rows(rank, action));
    return ns / speed_of(rank);
  }

  void compute_or_issue(Rank rank, const Action& action) {
    RankState& state = this->state(rank);
    const double ns = computed_ns(rank, action);
    if (!two_clocks_) return compute(state, ns);
    state.issues = true;
    state.device_begin_ns = std::max(state.device_ns, now_ns_);
    state.device_ns = state.device_begin_ns + ns;
    compute(state, host_ns(rank, action));
  }

  /// False while the host waits for what it has issued.
  bool device_is_done(RankState& state) {
    if (state.device_ns <= now_ns_) return true;
    state.waits_until_ns = state.device_ns;
    return false;
  }

  /// False while the action must wait.
  bool begin(Rank rank, const Action& action) {
    RankState& state = this->state(rank);
    const auto stage = static_cast<size_t>(action.stage);
    const MeasuredAction* const measured =
        costs_.measured.empty() ? nullptr
                                : &costs_.measured.at(static_cast<size_t>(rank)).at(state.next);
    switch (action.kind) {
      case ActionKind::forward:
      case ActionKind::backward:
        compute_or_issue(rank, action);
        return true;
      case ActionKind::send:
        compute(state, message_ns(action, measured));
        return true;
      case ActionKind::receive: {
        const auto arrival = arrivals_.find({action.index, action.direction});
        if (arrival == arrivals_.end()) return false;
        if (arrival->second > now_ns_) {
          state.waits_until_ns = arrival->second;
          return false;
        }
        compute(state, message_ns(action, measured));
        return true;
      }
      case ActionKind::sync_buffers:
        return meet(rank, action, program_.stage_ranks[stage],
                    ring_ns(program_.stage_ranks[stage], 0), measured);
      case ActionKind::reduce_outputs: {
        std::vector<Rank> all;
        for (Rank other = 0; other < program_.ranks(); ++other) all.push_back(other);
        return meet(rank, action, all, ring_ns(all, 0), measured);
      }
      case ActionKind::reduce_gradients: {
        const plan::Reduction& reduction = program_.reductions[static_cast<size_t>(action.index)];
        const double ns = ring_ns(reduction.ranks, bytes_of(reduction));
        // Shards go one way; see optimizer_ns().
        return meet(rank, action, reduction.ranks, shard_optimizer_ ? ns / 2 : ns, measured);
      }
      case ActionKind::return_outputs:
      case ActionKind::release:
        return true;
    }
    RANNC_CHECK(false, "an action of unknown kind");
  }

  /// What follows the action at hand; the optimizer step ends the loop's turn.
  void finish(Rank rank) {
    RankState& state = this->state(rank);
    if (std::exchange(state.issues, false)) {  // the device is not done before its last operator
      state.device_ns = std::max(state.device_ns, now_ns_);
      state.busy_ns += state.device_ns - state.device_begin_ns;
    }
    if (state.next == actions(rank).size()) {
      state.ended = true;
      return;
    }
    const Action& action = actions(rank)[state.next++];
    if (action.kind == ActionKind::send) depart(action, flight_ns(rank, state.next - 1));
  }

  /// How long a message is under way; negative where it was not measured.
  [[nodiscard]] double flight_ns(Rank rank, size_t action) const {
    if (costs_.measured.empty()) return -1;
    return costs_.measured.at(static_cast<size_t>(rank)).at(action).wait_ns;
  }

  void depart(const Action& action, double flight_ns) {
    const plan::Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    const Rank sender = action.direction == Direction::forward ? transfer.from : transfer.to;
    const double ready = std::max(now_ns_, state(sender).device_ns);
    double arrival = now_ns_;  // within a rank the host goes on, and the device keeps the order
    if (flight_ns >= 0) {
      arrival += flight_ns;
    } else if (!within_rank(action)) {
      const Rank to = sender == transfer.from ? transfer.to : transfer.from;
      const cost::Link& link = link_between(sender, to);
      double& free = channels_[{sender, to}];
      const double start = std::max(ready, free);
      free = start + message_bytes(transfer) / link.bandwidth_bytes_per_s * 1e9;
      arrival = free + link.latency_ns;
    }
    arrivals_[{action.index, action.direction}] = arrival;
  }

  [[nodiscard]] double message_ns(const Action& action, const MeasuredAction* measured) const {
    if (measured != nullptr) return measured->work_ns;
    return within_rank(action) ? 0 : costs_.message_ns;
  }

  [[nodiscard]] bool within_rank(const Action& action) const {
    const plan::Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    return transfer.from == transfer.to;
  }

  [[nodiscard]] const cost::Link& link_between(Rank a, Rank b) const {
    return cluster_.host_of(a) == cluster_.host_of(b) ? cluster_.intra_host : cluster_.inter_host;
  }

  [[nodiscard]] double message_bytes(const plan::Transfer& transfer) const {
    const int64_t rows = transfer.whole
                             ? program_.split.micro_rows[static_cast<size_t>(transfer.micro_batch)]
                             : transfer.source.size();
    return static_cast<double>(graph_[transfer.value].bytes(rows));
  }

  [[nodiscard]] int64_t rows(Rank rank, const Action& action) const {
    const auto stage = static_cast<size_t>(action.stage);
    const auto replica = static_cast<size_t>(*program_.mesh(action.stage).replica_of(rank));
    return program_.shares[stage][replica][static_cast<size_t>(action.micro_batch)].size();
  }

  /// The last of `members` sets the time at which all of them go on, `ns` later.
  bool meet(Rank rank, const Action& action, const std::vector<Rank>& members, double ns,
            const MeasuredAction* measured) {
    RankState& state = this->state(rank);
    if (!device_is_done(state)) return false;
    const Key key{action.kind, action.stage, action.index};
    const auto met = met_.find(key);
    if (met != met_.end()) {  // its end has passed
      if (measured != nullptr) compute(state, measured->work_ns);
      return true;
    }
    std::vector<Rank>& present = meetings_[key];
    if (std::ranges::find(present, rank) == present.end()) present.push_back(rank);
    state.waits_until_ns = kNever;
    if (present.size() < members.size()) return false;
    const double end = now_ns_ + (measured != nullptr ? measured->wait_ns : ns);
    met_.emplace(key, end);
    progress_ = true;
    for (Rank member : members) this->state(member).waits_until_ns = end;
    return false;
  }

  /// All buckets, and a small message that says who has gradients, go round together.
  [[nodiscard]] double ring_ns(const std::vector<Rank>& members, double bytes) const {
    const auto r = static_cast<double>(members.size());
    if (members.size() < 2) return 0;
    const bool one_host = std::ranges::all_of(members, [&](Rank member) {
      return cluster_.host_of(member) == cluster_.host_of(members[0]);
    });
    const cost::Link& link = one_host ? cluster_.intra_host : cluster_.inter_host;
    return 2 * (r - 1) * link.latency_ns +
           2 * (r - 1) / r * bytes / link.bandwidth_bytes_per_s * 1e9 +
           bytes * costs_.copy_ns_per_byte;
  }

  [[nodiscard]] std::map<int, int> computing_on_hosts() const {
    std::map<int, int> counts;
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      if (ranks_[static_cast<size_t>(rank)].computes) ++counts[cluster_.host_of(rank)];
    }
    return counts;
  }

  /// How much a rank of a host with `computing` busy ranks gets done in a unit of time.
  [[nodiscard]] double speed(int computing) const {
    return std::min(1.0, costs_.cores / static_cast<double>(computing));
  }

  [[nodiscard]] double next_event_ns() const {
    const std::map<int, int> computing = computing_on_hosts();
    double next = kNever;
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      const RankState& state = ranks_[static_cast<size_t>(rank)];
      if (state.ended) continue;
      if (state.computes) {
        const double rate = speed(computing.at(cluster_.host_of(rank)));
        next = std::min(next, now_ns_ + state.work_ns / rate);
      } else if (state.waits_until_ns > now_ns_) {
        next = std::min(next, state.waits_until_ns);
      }
    }
    return next;
  }

  void pass(double ns) {
    const std::map<int, int> computing = computing_on_hosts();
    now_ns_ += ns;
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      RankState& state = this->state(rank);
      if (!state.computes) continue;
      state.work_ns -= ns * speed(computing.at(cluster_.host_of(rank)));
      if (!state.issues) state.busy_ns += ns;
      // Rounding: below a thousandth of a nanosecond nothing is left.
      if (state.work_ns > 1e-3) continue;
      state.computes = false;
      finish(rank);
    }
  }

  using Key = std::tuple<ActionKind, int, int>;

  const plan::Program& program_;
  const ir::Graph& graph_;
  const cost::Cluster& cluster_;
  const StepCosts& costs_;
  const bool shard_optimizer_;
  const bool two_clocks_;  // the host's and the device's
  const Stages stages_;
  std::vector<RankState> ranks_;
  double now_ns_ = 0;
  bool progress_ = false;
  std::map<std::pair<int, Direction>, double> arrivals_;  // by transfer
  std::map<std::pair<Rank, Rank>, double> channels_;      // when a pair's last message ended
  std::map<Key, std::vector<Rank>> meetings_;             // who has come
  std::map<Key, double> met_;                             // when they end
};

}  // namespace

StepTime step_time(const plan::Program& program, const plan::Plan& plan, const ir::Graph& graph,
                   const cost::GraphProfile& profile, const cost::Cluster& cluster,
                   const StepCosts& costs) {
  return Walk(program, plan, graph, profile, cluster, costs).run();
}

}  // namespace rannc::predict
