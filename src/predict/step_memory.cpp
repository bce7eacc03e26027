#include "rannc/predict/step_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "predict/message_times.h"
#include "predict/stage_memory.h"
#include "rannc/cost/device_bytes.h"
#include "rannc/plan/ahead.h"
#include "rannc/plan/buckets.h"

namespace rannc::predict {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Direction;
using plan::kUser;
using plan::Rank;

class Walker {
 public:
  Walker(const plan::Program& program, const ir::Graph& graph, const cost::GraphProfile& profile,
         const std::vector<StageMemory>& stages, const std::vector<cost::SavedStorage>& saved,
         const OptimizerMemory& optimizer, int64_t bucket_bytes, bool shard_optimizer)
      : program_(program),
        graph_(graph),
        profile_(profile),
        stages_(stages),
        optimizer_(optimizer),
        bucket_bytes_(bucket_bytes),
        shard_optimizer_(shard_optimizer),
        times_(message_times(program, profile, stages)),
        computations_until_sent_(
            plan::computations_until_sent(program.schedule, groups_of(program))) {
    find_saved_results(saved);
  }

  double peak_bytes(Rank rank) {
    live_ = peak_ = 0;
    gradients_.clear();
    received_.clear();
    find_arrays(rank);
    sent_.clear();
    own_.clear();
    hold_state(rank);
    const std::vector<Action>& actions = program_.actions[static_cast<size_t>(rank)];
    backwards_left_.clear();
    shared_held_.clear();
    for (const Action& action : actions) {
      if (action.kind == ActionKind::backward && rows(rank, action) > 0) {
        ++backwards_left_[action.stage];
      }
    }
    const auto user = std::ranges::find(actions, ActionKind::return_outputs, &Action::kind);
    run(rank, 0, {actions.begin(), user});
    run(rank, static_cast<size_t>(user - actions.begin()), {user, actions.end()});
    step_optimizer();
    return peak_;
  }

 private:
  struct Sent {
    double bytes;
    double left_ns;
    double posted_ns;  // by its receiver
    bool moved = false;
    int computations = 0;  // that have begun since
  };
  struct Own {
    double bytes = 0;
    int takers = 0;
  };
  struct Shard {
    double ranks = 1;  ///< that share the optimizer's state of the parameter
    double bytes = 0;  ///< of one's part of the bucket
  };

  /// Sets of ranks that share no rank.
  static int groups_of(const plan::Program& program) {
    return static_cast<int>(
        std::set(program.stage_ranks.begin(), program.stage_ranks.end()).size());
  }

  void raise_peak(double more) { peak_ = std::max(peak_, live_ + more); }

  [[nodiscard]] double at(const std::vector<double>& values, int64_t rows) const {
    return cost::cost_at(values, profile_.rows, static_cast<double>(rows));
  }

  /// The part of the optimizer's state of a parameter that is on each of its ranks.
  [[nodiscard]] double share(const std::string& parameter) const {
    const auto shard = shard_of_.find(parameter);
    return shard == shard_of_.end() ? 1 : 1 / shard->second.ranks;
  }

  /// The most of it that one of them steps.
  [[nodiscard]] double largest_part(const cost::ProfileParam& param) const {
    const auto shard = shard_of_.find(param.id);
    return shard == shard_of_.end() || param.bytes == 0
               ? 1
               : std::min(1.0, shard->second.bytes / param.bytes);
  }

  /// Parameters whose gradients are copied into one array before they are summed over ranks.
  void find_arrays(Rank rank) {
    arrays_.clear();
    array_of_.clear();
    shard_of_.clear();
    gathered_bytes_ = 0;
    double before = 0;
    for (const plan::Reduction& reduction : program_.reductions) {
      if (std::ranges::count(reduction.ranks, rank) == 0) continue;
      for (const plan::Bucket& bucket : plan::buckets(reduction, graph_, bucket_bytes_)) {
        auto bytes = static_cast<double>(bucket.bytes);
        if (shard_optimizer_) {
          const ir::DType dtype = graph_[reduction.parameters[bucket.parameters[0]]].dtype;
          const auto ranks = static_cast<double>(reduction.ranks.size());
          bytes = static_cast<double>(plan::shard_bytes(bucket, dtype, reduction.ranks.size()));
          for (size_t parameter : bucket.parameters) {
            shard_of_[graph_[reduction.parameters[parameter]].name] = {ranks, bytes};
          }
          bytes *= ranks;
          // The next one is filled while one travels.
          gathered_bytes_ = std::max(gathered_bytes_, before + bytes);
          before = bytes;
        }
        const bool is_whole = bytes == static_cast<double>(bucket.bytes);
        if (bucket.parameters.size() == 1 && is_whole) continue;  // summed where its gradient is
        for (size_t parameter : bucket.parameters) {
          array_of_[graph_[reduction.parameters[parameter]].name] = arrays_.size();
        }
        arrays_.push_back(bytes);
      }
    }
  }

  /// The gradients of those parameters of the node that have none yet.
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
      if (!program_.mesh(static_cast<int>(stage)).position_of(rank)) continue;
      params.insert(stages_[stage].params.begin(), stages_[stage].params.end());
    }
    for (uint32_t index : params) {
      const cost::ProfileParam& param = profile_.params[index];
      live_ += param.bytes;
      if (!param.trainable) continue;
      live_ +=
          share(param.id) * (param.optimizer_bytes >= 0 ? param.optimizer_bytes
                                                        : param.bytes * optimizer_.state_factor);
    }
    raise_peak(0);
  }

  /// The actions of one phase, of which `first` is the first.
  void run(Rank rank, size_t first, std::span<const Action> actions) {
    plan::PostedAhead posted(actions);
    for (size_t at = 0; at < actions.size(); ++at) {
      posted.before(at, [&](const Action& receive) { post(receive); });
      now_ns_ = times_.begin_ns[static_cast<size_t>(rank)][first + at];
      run(rank, actions[at]);
    }
    for (const Sent& sent : std::exchange(sent_, {})) live_ -= sent.bytes;
  }

  void run(Rank rank, const Action& action) {
    switch (action.kind) {
      case ActionKind::forward:
        return forward(rank, action);
      case ActionKind::backward:
        return backward(rank, action);
      case ActionKind::reduce_gradients:
        return move_sent();
      case ActionKind::receive:
        return receive(action);
      case ActionKind::send:
        return send(action);
      default:
        return;
    }
  }

  [[nodiscard]] int64_t rows(Rank rank, const Action& action) const {
    const auto stage = static_cast<size_t>(action.stage);
    const auto replica = static_cast<size_t>(*program_.mesh(action.stage).replica_of(rank));
    return program_.shares[stage][replica][static_cast<size_t>(action.micro_batch)].size();
  }

  /// What a forward keeps, or the second run of a segment.
  [[nodiscard]] double saved_bytes(const StageMemory& stage, int64_t rows, bool with_shared,
                                   int segment = StageMemory::kKept) const {
    double bytes = 0;
    for (const StageMemory::Saved& saved : stage.saved) {
      if (saved.segment != segment) continue;
      if (with_shared || !saved.per_call) bytes += at(saved.bytes, rows);
    }
    return bytes;
  }

  [[nodiscard]] double input_bytes(const StageMemory::Segment& segment, int64_t rows) const {
    double bytes = 0;
    for (ir::ValueId input : segment.inputs) {
      bytes += static_cast<double>(cost::device_bytes(graph_[input], rows));
    }
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
    drop_sent(now_ns_);
    // What arrived is among what is saved, or gone after its last use; recompute keeps it.
    const double inputs = take_received(action, Direction::forward);
    if (stage.recompute) {
      raise_peak(largest_workspace(stage, rows));
      kept_[{action.stage, action.micro_batch}] = inputs;
      return;
    }
    // What micro-batches share is held from the first forward to the last backward.
    live_ += saved_bytes(stage, rows, shared_held_.insert(action.stage).second) - inputs;
    for (const StageMemory::Segment& segment : stage.segments) live_ += input_bytes(segment, rows);
    raise_peak(stage.segments.empty() ? 0 : largest_workspace(stage, rows));
  }

  void backward(Rank rank, const Action& action) {
    const StageMemory& stage = stages_[static_cast<size_t>(action.stage)];
    const int64_t rows = this->rows(rank, action);
    if (rows == 0) return;
    drop_sent(now_ns_);
    // The incoming gradients are workspace of the last nodes, or wait.
    live_ -= take_received(action, Direction::backward);
    if (stage.recompute) live_ -= std::exchange(kept_[{action.stage, action.micro_batch}], 0);
    const bool last = --backwards_left_[action.stage] == 0;
    const auto let_go = [&](const StageMemory::Saved& saved) {
      const bool again = saved.segment != StageMemory::kKept;
      if (last || again || !saved.per_call) live_ -= at(saved.bytes, rows);
    };
    auto saved = stage.saved.rbegin();
    auto segment = static_cast<int>(stage.segments.size()) - 1;
    const std::vector<double> waiting = waiting_bytes(stage, rows);
    for (uint32_t node : stage.nodes | std::views::reverse) {
      if (segment >= 0 && stage.segments[static_cast<size_t>(segment)].last == node) {
        live_ += saved_bytes(stage, rows, /*with_shared=*/true, segment) -
                 input_bytes(stage.segments[static_cast<size_t>(segment)], rows);
        --segment;
      }
      // A gradient is where its operator has put it, until it has been copied; that is workspace.
      const bool copied = std::ranges::any_of(profile_.nodes[node].params, [&](uint32_t param) {
        return array_of_.contains(profile_.params[param].id);
      });
      const double workspace = at(profile_.nodes[node].workspace_bytes, rows) + waiting[node];
      const bool in_place = profile_.nodes[node].adds_in_place;
      const double made = in_place && copied ? first_gradients_of(profile_.nodes[node]) : 0;
      if (!copied && !in_place) raise_peak(workspace);
      live_ += gradients_of(profile_.nodes[node]);
      if (copied || in_place) raise_peak(workspace + made);
      for (; saved != stage.saved.rend() && saved->first_user >= node; ++saved) let_go(*saved);
    }
    for (; saved != stage.saved.rend(); ++saved) let_go(*saved);
    raise_peak(0);
  }

  /// [node of the profile]: gradients of the stage that wait during its backward.
  [[nodiscard]] std::vector<double> waiting_bytes(const StageMemory& stage, int64_t rows) const {
    std::vector<double> bytes(profile_.nodes.size() + 1, 0);  // first what begins and ends
    for (const StageMemory::Waiting& gradient : stage.waiting) {
      if (gradient.producer + 1 >= gradient.last_user) continue;
      const auto size = static_cast<double>(cost::device_bytes(graph_[gradient.value], rows));
      bytes[static_cast<size_t>(gradient.producer + 1)] += size;
      bytes[static_cast<size_t>(gradient.last_user)] -= size;
    }
    std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
    return bytes;
  }

  /// After the last backward only gradients are left, and what the optimizer computes with.
  void step_optimizer() {
    double largest = 0, all = 0;
    for (uint32_t param : gradients_) {
      if (!optimizer_.largest_bytes.empty()) {
        largest = std::max(
            largest, optimizer_.largest_bytes.at(param) * largest_part(profile_.params[param]));
      }
      if (optimizer_.all_bytes.empty()) continue;
      all += share(profile_.params[param].id) * optimizer_.all_bytes.at(param);
    }
    raise_peak(largest + all);
    raise_peak(gathered_bytes_);
  }

  /// Values that cross between stages and that their operator saves, as relu() does, so that they
  /// are among what its stage has saved.
  void find_saved_results(const std::vector<cost::SavedStorage>& saved) {
    for (const plan::Transfer& transfer : program_.transfers) {
      const ir::NodeId producer = graph_[transfer.value].producer;
      if (transfer.from != transfer.to || !producer.valid()) continue;
      const auto holds_it = [&](const cost::SavedStorage& storage) {
        return storage.nodes.front() == producer.index &&
               std::ranges::any_of(storage.nodes, [&](uint32_t node) {
                 const std::vector<ir::ValueId> operands = graph_.operands({node});
                 return std::ranges::find(operands, transfer.value) != operands.end();
               });
      };
      if (std::ranges::any_of(saved, holds_it)) saved_results_.insert(transfer.value.index);
    }
  }

  [[nodiscard]] bool is_own(const Action& action) const {
    const plan::Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    return action.stage != kUser && transfer.from == transfer.to;
  }

  /// What a rank hands from one of its stages to another, held until the last of them has taken it.
  Own& own(const Action& action) {
    const plan::Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    return own_[{transfer.value.index, transfer.micro_batch, action.direction}];
  }

  void leave(const Action& action) {
    Own& own = this->own(action);
    const ir::ValueId value = program_.transfers[static_cast<size_t>(action.index)].value;
    const bool is_saved =
        action.direction == Direction::forward && saved_results_.contains(value.index);
    if (own.takers++ > 0 || is_saved) return;
    own.bytes = bytes_of(action);
    live_ += own.bytes;
    raise_peak(0);
  }

  void receive(const Action& action) {
    if (action.stage == kUser || !is_own(action)) return;
    Own& own = this->own(action);
    if (--own.takers > 0) return;
    received_[{action.stage, action.micro_batch, action.direction}] += std::exchange(own.bytes, 0);
  }

  [[nodiscard]] double bytes_of(const Action& action) const {
    const plan::Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    const int64_t rows = transfer.whole
                             ? program_.split.micro_rows[static_cast<size_t>(transfer.micro_batch)]
                             : transfer.target.size();
    return static_cast<double>(cost::device_bytes(graph_[transfer.value], rows));
  }

  void post(const Action& action) {
    if (action.stage == kUser || is_own(action)) return;
    received_[{action.stage, action.micro_batch, action.direction}] += bytes_of(action);
    live_ += bytes_of(action);
    raise_peak(0);
  }

  [[nodiscard]] double take_received(const Action& action, Direction direction) {
    return std::exchange(received_[{action.stage, action.micro_batch, direction}], 0);
  }

  void send(const Action& action) {
    if (action.stage == kUser) return;
    if (is_own(action)) return leave(action);
    const double posted_ns =
        times_.posted_ns[static_cast<size_t>(action.direction)][static_cast<size_t>(action.index)];
    sent_.push_back({.bytes = bytes_of(action), .left_ns = now_ns_, .posted_ns = posted_ns});
    live_ += sent_.back().bytes;
    raise_peak(0);
  }

  /// A computation begins: messages are gone that their receivers have posted by then, and that had
  /// time to move, while the rank computed or waited for another message. One that is there already
  /// is not waited for. Interleaved, ranks hand on at every computation, and each may be late: what
  /// a rank holds is what it may hold.
  void drop_sent(double now_ns) {
    for (Sent& sent : sent_) ++sent.computations;
    const bool interleaved = program_.schedule == plan::Schedule::interleaved;
    const auto is_gone = [&](const Sent& sent) {
      if (interleaved) return sent.computations > computations_until_sent_;
      return sent.posted_ns <= now_ns && (sent.moved || sent.left_ns < now_ns);
    };
    for (const Sent& sent : sent_) {
      if (is_gone(sent)) live_ -= sent.bytes;
    }
    std::erase_if(sent_, is_gone);
    move_sent();
  }

  void move_sent() {
    for (Sent& sent : sent_) sent.moved = true;
  }

  const plan::Program& program_;
  const ir::Graph& graph_;
  const cost::GraphProfile& profile_;
  const std::vector<StageMemory>& stages_;
  const OptimizerMemory& optimizer_;
  const int64_t bucket_bytes_;
  const bool shard_optimizer_;
  const MessageTimes times_;
  const int computations_until_sent_;
  double now_ns_ = 0;
  double live_ = 0;
  double peak_ = 0;
  std::map<std::tuple<int, int, Direction>, double> received_;  // by stage and micro-batch
  std::vector<Sent> sent_;
  std::map<std::tuple<uint32_t, int, Direction>, Own> own_;  // by value and micro-batch
  std::set<uint32_t> saved_results_;                         // values
  std::map<std::pair<int, int>, double> kept_;  // by stage and micro-batch, with recompute
  std::map<int, int> backwards_left_;           // by stage, of micro-batches with rows
  std::set<int> shared_held_;                   // stages that hold what micro-batches share
  std::set<uint32_t> gradients_;                // parameters that have one
  std::vector<double> arrays_;                  // bytes of each, until it is there
  std::map<std::string, size_t> array_of_;      // by name of the parameter
  std::map<std::string, Shard> shard_of_;       // by name of the parameter
  double gathered_bytes_ = 0;                   // of arrays by which parameters come back
};

}  // namespace

std::vector<double> step_peak_bytes(const plan::Program& program, const plan::Plan& plan,
                                    const ir::Graph& graph, const cost::GraphProfile& profile,
                                    const std::vector<cost::SavedStorage>& saved,
                                    const OptimizerMemory& optimizer, int64_t bucket_bytes) {
  const std::vector<StageMemory> stages = stage_memories(plan, graph, profile, saved);
  Walker walker(program, graph, profile, stages, saved, optimizer, bucket_bytes,
                plan.shard_optimizer);
  std::vector<double> peaks;
  for (const std::vector<Rank>& ranks : program.stage_ranks) {
    double most = 0;
    for (Rank rank : ranks) most = std::max(most, walker.peak_bytes(rank));
    peaks.push_back(most);
  }
  return peaks;
}

}  // namespace rannc::predict
