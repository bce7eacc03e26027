#include "rannc/partition/step_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "rannc/plan/reduction.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Direction;
using plan::kUser;
using plan::Rank;

constexpr auto kReductionBytes = static_cast<double>(plan::kReductionBytes);

/// What a stage holds and needs, by its nodes.
struct StageMemory {
  std::vector<uint32_t> nodes;  // of the profile, ascending
  std::set<uint32_t> params;
  bool recompute = false;
  struct Saved {
    uint32_t first_user;  // its backward is the last one that needs the memory
    std::vector<double> bytes;
  };
  std::vector<Saved> saved;
};

class Walker {
 public:
  Walker(const plan::Program& program, const ir::Graph& graph, const cost::GraphProfile& profile,
         const std::vector<StageMemory>& stages, double optimizer_factor)
      : program_(program),
        graph_(graph),
        profile_(profile),
        stages_(stages),
        optimizer_factor_(optimizer_factor) {}

  double peak_bytes(Rank rank) {
    live_ = peak_ = 0;
    gradients_.clear();
    sent_.clear();
    hold_state(rank);
    for (const Action& action : program_.actions[static_cast<size_t>(rank)]) run(rank, action);
    return peak_;
  }

 private:
  void reach(double more) { peak_ = std::max(peak_, live_ + more); }

  [[nodiscard]] double at(const std::vector<double>& values, int64_t rows) const {
    return cost::cost_at(values, profile_.rows, static_cast<double>(rows));
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
      live_ += param.optimizer_bytes >= 0 ? param.optimizer_bytes : param.bytes * optimizer_factor_;
    }
    reach(0);
  }

  void run(Rank rank, const Action& action) {
    switch (action.kind) {
      case ActionKind::forward:
        return forward(rank, action);
      case ActionKind::backward:
        return backward(rank, action);
      case ActionKind::receive:
        return receive(action);
      case ActionKind::send:
        return send(action);
      case ActionKind::reduce_gradients:
        return reduce(program_.reductions[static_cast<size_t>(action.index)]);
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
    leave_messages();
    // What arrived is among what is saved, or gone after its last use; recompute keeps it.
    const double inputs = std::exchange(received_, 0);
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
    leave_messages();
    live_ -= std::exchange(received_, 0);  // the incoming gradients are workspace of the last nodes
    if (stage.recompute) {
      double& kept = kept_[{action.stage, action.micro_batch}];
      live_ += saved_bytes(stage, rows) - std::exchange(kept, 0);
    }
    auto saved = stage.saved.rbegin();
    for (uint32_t node : stage.nodes | std::views::reverse) {
      reach(at(profile_.nodes[node].workspace_bytes, rows));
      for (uint32_t param : profile_.nodes[node].params) {
        if (profile_.params[param].trainable && gradients_.insert(param).second) {
          live_ += profile_.params[param].bytes;
        }
      }
      for (; saved != stage.saved.rend() && saved->first_user >= node; ++saved) {
        live_ -= at(saved->bytes, rows);
      }
    }
    for (; saved != stage.saved.rend(); ++saved) live_ -= at(saved->bytes, rows);
    reach(0);
  }

  [[nodiscard]] double bytes_of(const Action& action) const {
    const plan::Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    if (transfer.from == transfer.to) return 0;  // shared, not copied
    const int64_t rows = transfer.whole
                             ? program_.split.micro_rows[static_cast<size_t>(transfer.micro_batch)]
                             : transfer.target.size();
    return static_cast<double>(graph_[transfer.value].bytes(rows));
  }

  void receive(const Action& action) {
    if (action.stage == kUser) return;
    leave_messages();
    received_ += bytes_of(action);
    live_ += bytes_of(action);
    reach(0);
  }

  /// A message is gone when the rank waits for another, or computes again.
  void send(const Action& action) {
    if (action.stage == kUser) return;
    sent_.push_back(bytes_of(action));
    live_ += sent_.back();
    reach(0);
  }

  void leave_messages() {
    for (double bytes : sent_) live_ -= bytes;
    sent_.clear();
  }

  void reduce(const plan::Reduction& reduction) {
    leave_messages();
    double bytes = 0;
    for (ir::ValueId value : reduction.parameters) {
      bytes += static_cast<double>(graph_[value].bytes(1));
    }
    if (reduction.parameters.size() > 1) reach(std::min(bytes, kReductionBytes));
  }

  const plan::Program& program_;
  const ir::Graph& graph_;
  const cost::GraphProfile& profile_;
  const std::vector<StageMemory>& stages_;
  const double optimizer_factor_;
  double live_ = 0;
  double peak_ = 0;
  double received_ = 0;                         // since the last computation
  std::vector<double> sent_;                    // since the last computation
  std::map<std::pair<int, int>, double> kept_;  // by stage and micro-batch, with recompute
  std::set<uint32_t> gradients_;                // parameters that have one
};

std::vector<StageMemory> stage_memories(const plan::Plan& plan, const ir::Graph& graph,
                                        const cost::GraphProfile& profile,
                                        const std::vector<SavedStorage>& saved) {
  std::unordered_map<std::string_view, uint32_t> index;
  for (uint32_t i = 0; i < profile.nodes.size(); ++i) index.emplace(profile.nodes[i].name, i);
  std::vector<StageMemory> stages(plan.stages.size());
  std::vector<size_t> stage_of(profile.nodes.size(), 0);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    stages[stage].recompute = plan.stages[stage].recompute;
    for (const std::string& name : plan.stages[stage].nodes) {
      const auto found = index.find(name);
      RANNC_CHECK(found != index.end(), fmt::format("node '{}' is not in the profile", name));
      stages[stage].nodes.push_back(found->second);
      stage_of[found->second] = stage;
      const std::vector<uint32_t>& used = profile.nodes[found->second].params;
      stages[stage].params.insert(used.begin(), used.end());
    }
    std::ranges::sort(stages[stage].nodes);
  }
  for (const SavedStorage& storage : saved) {
    std::set<size_t> holders;
    for (uint32_t node : storage.nodes) {
      const auto found = index.find(graph.nodes.at(node).name);
      if (found == index.end()) continue;  // of no batch: small, and in every stage
      const size_t stage = stage_of[found->second];
      if (!holders.insert(stage).second) continue;
      stages[stage].saved.push_back({found->second, storage.bytes});
    }
  }
  for (StageMemory& stage : stages) {
    std::ranges::stable_sort(stage.saved, {}, &StageMemory::Saved::first_user);
  }
  return stages;
}

}  // namespace

std::vector<double> step_peak_bytes(const plan::Program& program, const plan::Plan& plan,
                                    const ir::Graph& graph, const cost::GraphProfile& profile,
                                    const std::vector<SavedStorage>& saved,
                                    double optimizer_bytes_per_param_byte) {
  const std::vector<StageMemory> stages = stage_memories(plan, graph, profile, saved);
  Walker walker(program, graph, profile, stages, optimizer_bytes_per_param_byte);
  std::vector<double> peaks;
  for (const std::vector<Rank>& ranks : program.stage_ranks) {
    double most = 0;
    for (Rank rank : ranks) most = std::max(most, walker.peak_bytes(rank));
    peaks.push_back(most);
  }
  return peaks;
}

}  // namespace rannc::partition
