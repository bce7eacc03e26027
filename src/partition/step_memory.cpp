#include "rannc/partition/step_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "partition/stage_memory.h"
#include "rannc/cost/accumulation.h"
#include "rannc/plan/ahead.h"
#include "rannc/plan/buckets.h"

namespace rannc::partition {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Direction;
using plan::kUser;
using plan::Rank;

class Walker {
 public:
  Walker(const plan::Program& program, const ir::Graph& graph, const cost::GraphProfile& profile,
         const std::vector<StageMemory>& stages, const OptimizerMemory& optimizer,
         int64_t bucket_bytes)
      : program_(program),
        graph_(graph),
        profile_(profile),
        stages_(stages),
        optimizer_(optimizer),
        bucket_bytes_(bucket_bytes) {}

  double peak_bytes(Rank rank) {
    live_ = peak_ = 0;
    gradients_.clear();
    received_.clear();
    find_arrays(rank);
    sent_ = leaving_ = 0;
    hold_state(rank);
    const std::vector<Action>& actions = program_.actions[static_cast<size_t>(rank)];
    const auto user = std::ranges::find(actions, ActionKind::return_outputs, &Action::kind);
    run(rank, {actions.begin(), user});
    run(rank, {user, actions.end()});
    step_optimizer();
    return peak_;
  }

 private:
  void reach(double more) { peak_ = std::max(peak_, live_ + more); }

  [[nodiscard]] double at(const std::vector<double>& values, int64_t rows) const {
    return cost::cost_at(values, profile_.rows, static_cast<double>(rows));
  }

  /// Parameters whose gradients are copied into one array before they are summed over ranks.
  void find_arrays(Rank rank) {
    arrays_.clear();
    array_of_.clear();
    for (const plan::Reduction& reduction : program_.reductions) {
      if (std::ranges::count(reduction.ranks, rank) == 0) continue;
      for (const plan::Bucket& bucket : plan::buckets(reduction, graph_, bucket_bytes_)) {
        if (bucket.parameters.size() == 1) continue;  // summed where its gradient is
        for (size_t parameter : bucket.parameters) {
          array_of_[graph_[reduction.parameters[parameter]].name] = arrays_.size();
        }
        arrays_.push_back(static_cast<double>(bucket.bytes));
      }
    }
  }

  /// Of the node's parameters that have none yet.
  [[nodiscard]] double first_gradients_of(const cost::ProfileNode& node) const {
    double bytes = 0;
    for (uint32_t index : node.params) {
      const cost::ProfileParam& param = profile_.params[index];
      if (param.trainable && !gradients_.contains(index)) bytes += param.bytes;
    }
    return bytes;
  }

  /// What begins to live when the gradients of the node are there.
  [[nodiscard]] double gradients_of(const cost::ProfileNode& node) {
    double bytes = 0;
    for (uint32_t index : node.params) {
      const cost::ProfileParam& param = profile_.params[index];
      if (!param.trainable || !gradients_.insert(index).second) continue;
      const auto array = array_of_.find(param.id);
      bytes += array == array_of_.end() ? param.bytes : std::exchange(arrays_[array->second], 0);
    }
    return bytes;
  }

  void hold_state(Rank rank) {
    std::set<uint32_t> params;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (std::ranges::count(program_.stage_ranks[stage], rank) == 0) continue;
      params.insert(stages_[stage].params.begin(), stages_[stage].params.end());
    }
    for (uint32_t index : params) {
      const cost::ProfileParam& param = profile_.params[index];
      live_ += param.bytes;
      if (!param.trainable) continue;
      live_ += param.optimizer_bytes >= 0 ? param.optimizer_bytes
                                          : param.bytes * optimizer_.state_factor;
    }
    reach(0);
  }

  /// One phase, posting receives ahead as the executor does.
  void run(Rank rank, std::span<const Action> actions) {
    size_t posted = 0;
    int ahead = 0;  // computations among the actions that are posted and not run
    for (const Action& action : actions) {
      for (; posted < actions.size() && ahead < plan::kComputationsAhead; ++posted) {
        if (actions[posted].kind == ActionKind::receive) post(actions[posted]);
        if (is_computation(actions[posted])) ++ahead;
      }
      run(rank, action);
      if (is_computation(action)) --ahead;
    }
  }

  static bool is_computation(const Action& action) {
    return action.kind == ActionKind::forward || action.kind == ActionKind::backward;
  }

  void run(Rank rank, const Action& action) {
    switch (action.kind) {
      case ActionKind::forward:
        return forward(rank, action);
      case ActionKind::backward:
        return backward(rank, action);
      case ActionKind::receive:
      case ActionKind::reduce_gradients:
        return leave_messages();
      case ActionKind::send:
        return send(action);
      default:
        return;
    }
  }

  [[nodiscard]] int64_t rows(Rank rank, const Action& action) const {
    const auto stage = static_cast<size_t>(action.stage);
    const std::vector<Rank>& ranks = program_.stage_ranks[stage];
    const auto replica = static_cast<size_t>(std::ranges::find(ranks, rank) - ranks.begin());
    return program_.shares[stage][replica][static_cast<size_t>(action.micro_batch)].size();
  }

  [[nodiscard]] double saved_bytes(const StageMemory& stage, int64_t rows) const {
    double bytes = 0;
    for (const StageMemory::Saved& saved : stage.saved) bytes += at(saved.bytes, rows);
    return bytes;
  }

  [[nodiscard]] double largest_workspace(const StageMemory& stage, int64_t rows) const {
    double bytes = 0;
    for (uint32_t node : stage.nodes) {
      bytes = std::max(bytes, at(profile_.nodes[node].workspace_bytes, rows));
    }
    return bytes;
  }

  void forward(Rank rank, const Action& action) {
    const StageMemory& stage = stages_[static_cast<size_t>(action.stage)];
    const int64_t rows = this->rows(rank, action);
    if (rows == 0) return;
    age_messages();
    // What arrived is among what is saved, or gone after its last use; recompute keeps it.
    const double inputs = take_received(action, Direction::forward);
    if (stage.recompute) {
      reach(largest_workspace(stage, rows));
      kept_[{action.stage, action.micro_batch}] = inputs;
      return;
    }
    live_ += saved_bytes(stage, rows) - inputs;
    reach(0);
  }

  void backward(Rank rank, const Action& action) {
    const StageMemory& stage = stages_[static_cast<size_t>(action.stage)];
    const int64_t rows = this->rows(rank, action);
    if (rows == 0) return;
    age_messages();
    // The incoming gradients are workspace of the last nodes, or wait.
    live_ -= take_received(action, Direction::backward);
    if (stage.recompute) {
      double& kept = kept_[{action.stage, action.micro_batch}];
      live_ += saved_bytes(stage, rows) - std::exchange(kept, 0);
    }
    auto saved = stage.saved.rbegin();
    const std::vector<double> waiting = waiting_bytes(stage, rows);
    for (uint32_t node : stage.nodes | std::views::reverse) {
      // A gradient is where its operator has put it, until it has been copied; that is workspace.
      const bool copied = std::ranges::any_of(profile_.nodes[node].params, [&](uint32_t param) {
        return array_of_.contains(profile_.params[param].id);
      });
      const double workspace = at(profile_.nodes[node].workspace_bytes, rows) + waiting[node];
      const bool in_place = cost::adds_in_place(profile_.nodes[node]);
      const double made = in_place && copied ? first_gradients_of(profile_.nodes[node]) : 0;
      if (!copied && !in_place) reach(workspace);
      live_ += gradients_of(profile_.nodes[node]);
      if (copied || in_place) reach(workspace + made);
      for (; saved != stage.saved.rend() && saved->first_user >= node; ++saved) {
        live_ -= at(saved->bytes, rows);
      }
    }
    for (; saved != stage.saved.rend(); ++saved) live_ -= at(saved->bytes, rows);
    reach(0);
  }

  /// [node of the profile]: gradients of the stage that wait during its backward.
  [[nodiscard]] std::vector<double> waiting_bytes(const StageMemory& stage, int64_t rows) const {
    std::vector<double> bytes(profile_.nodes.size() + 1, 0);  // first what begins and ends
    for (const StageMemory::Waiting& gradient : stage.waiting) {
      if (gradient.producer + 1 >= gradient.last_user) continue;
      const auto size = static_cast<double>(graph_[gradient.value].bytes(rows));
      bytes[static_cast<size_t>(gradient.producer + 1)] += size;
      bytes[static_cast<size_t>(gradient.last_user)] -= size;
    }
    std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
    return bytes;
  }

  /// After the last backward only gradients are left, and what the optimizer computes with.
  void step_optimizer() {
    leave_messages();
    double largest = 0, all = 0;
    for (uint32_t param : gradients_) {
      if (!optimizer_.largest_bytes.empty()) {
        largest = std::max(largest, optimizer_.largest_bytes.at(param));
      }
      if (!optimizer_.all_bytes.empty()) all += optimizer_.all_bytes.at(param);
    }
    reach(largest + all);
  }

  [[nodiscard]] double bytes_of(const Action& action) const {
    const plan::Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    if (transfer.from == transfer.to) return 0;  // shared, not copied
    const int64_t rows = transfer.whole
                             ? program_.split.micro_rows[static_cast<size_t>(transfer.micro_batch)]
                             : transfer.target.size();
    return static_cast<double>(graph_[transfer.value].bytes(rows));
  }

  void post(const Action& action) {
    if (action.stage == kUser) return;
    received_[{action.stage, action.micro_batch, action.direction}] += bytes_of(action);
    live_ += bytes_of(action);
    reach(0);
  }

  [[nodiscard]] double take_received(const Action& action, Direction direction) {
    return std::exchange(received_[{action.stage, action.micro_batch, direction}], 0);
  }

  /// A message is gone when the rank has waited for another, or computed.
  void send(const Action& action) {
    if (action.stage == kUser) return;
    sent_ += bytes_of(action);
    live_ += bytes_of(action);
    reach(0);
  }

  void leave_messages() { live_ -= std::exchange(sent_, 0) + std::exchange(leaving_, 0); }

  void age_messages() { live_ -= std::exchange(leaving_, std::exchange(sent_, 0)); }

  const plan::Program& program_;
  const ir::Graph& graph_;
  const cost::GraphProfile& profile_;
  const std::vector<StageMemory>& stages_;
  const OptimizerMemory& optimizer_;
  const int64_t bucket_bytes_;
  double live_ = 0;
  double peak_ = 0;
  std::map<std::tuple<int, int, Direction>, double> received_;  // by stage and micro-batch
  double sent_ = 0;                                             // since the last computation
  double leaving_ = 0;                                          // sent before it
  std::map<std::pair<int, int>, double> kept_;  // by stage and micro-batch, with recompute
  std::set<uint32_t> gradients_;                // parameters that have one
  std::vector<double> arrays_;                  // bytes of each, until it is there
  std::map<std::string, size_t> array_of_;      // by name of the parameter
};

}  // namespace

std::vector<double> step_peak_bytes(const plan::Program& program, const plan::Plan& plan,
                                    const ir::Graph& graph, const cost::GraphProfile& profile,
                                    const std::vector<SavedStorage>& saved,
                                    const OptimizerMemory& optimizer, int64_t bucket_bytes) {
  const std::vector<StageMemory> stages = stage_memories(plan, graph, profile, saved);
  Walker walker(program, graph, profile, stages, optimizer, bucket_bytes);
  std::vector<double> peaks;
  for (const std::vector<Rank>& ranks : program.stage_ranks) {
    double most = 0;
    for (Rank rank : ranks) most = std::max(most, walker.peak_bytes(rank));
    peaks.push_back(most);
  }
  return peaks;
}

}  // namespace rannc::partition
