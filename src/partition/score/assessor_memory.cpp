#include <algorithm>
#include <numeric>
#include <vector>

#include "partition/score/assessor.h"
#include "rannc/plan/ahead.h"

// The memory of a draft: by section 6 of docs/planner-files.md, and, where that may add up to more
// than there is, within a step.
namespace rannc::partition {
namespace {

Pipeline order_of(const Draft& draft, size_t stages) {
  Pipeline arrangement;
  arrangement.schedule = draft.schedule;
  arrangement.groups = static_cast<int>(draft.groups.size());
  arrangement.micro_batches = draft.micro_batches;
  arrangement.forward_ns.assign(stages, 0.0);
  return arrangement;
}

}  // namespace

double Assessor::stage_peak(const Draft& draft, int index, bool recompute) const {
  const Stage& stage = sheet_.stages[static_cast<size_t>(index)];
  const int64_t held = draft.schedule == plan::Schedule::gpipe
                           ? draft.micro_batches
                           : std::min<int64_t>(draft.micro_batches, draft.stages() - index);
  if (model_.moments() != nullptr) {
    return partition::peak_bytes(account(draft, static_cast<size_t>(index)), recompute, held,
                                 draft.micro_batches);
  }
  const auto count = static_cast<double>(held);
  const double in = stage.in.at(stage.rows), out = stage.out.at(stage.rows);
  const double activations = recompute
                                 ? count * (in + stage.graph_in.at(stage.rows)) + stage.saved_bytes
                                 : count * stage.saved_bytes;
  return stage.state.param_bytes + stage.state.gradient_bytes +
         stage.state.optimizer_bytes * optimizer_share(request_, draft.replicas(index)) +
         activations + 2 * (in + out) + stage.workspace_bytes;
}

StageAccount Assessor::account(const Draft& draft, size_t index) const {
  const Stage& stage = sheet_.stages[index];
  const int replicas = draft.replicas(static_cast<int>(index));
  return {.state_bytes = stage.state.param_bytes +
                         stage.state.optimizer_bytes * optimizer_share(request_, replicas),
          .gradient_bytes = stage.held.gradient_bytes,
          .saved_bytes = stage.held.saved_bytes,
          .first_bytes = stage.held.first_bytes,
          .later_bytes = stage.held.later_bytes,
          .graph_in_bytes = stage.graph_in.at(stage.rows),
          .in_bytes = stage.in.at(stage.rows),
          .out_bytes = stage.out.at(stage.rows),
          .in_gradient_bytes = stage.in_gradients.at(stage.rows),
          .out_gradient_bytes = stage.out_gradients.at(stage.rows)};
}

double Assessor::group_moment(const Draft& draft, size_t group,
                              const std::vector<bool>& recompute) const {
  const size_t count = sheet_.stages.size(), p = draft.groups.size();
  std::vector<StageAccount> accounts(count);
  for (size_t s = group; s < count; s += p) accounts[s] = account(draft, s);
  const BlockModel::State state = group_state(draft, group);
  const Pipeline shape = order_of(draft, count);
  const auto actions = 2 * draft.micro_batches * draft.interleave;
  std::vector<bool> began(count, false);
  // What the last actions have sent is not gone yet.
  std::vector<double> last_sent(
      static_cast<size_t>(plan::computations_until_sent(draft.schedule, static_cast<int>(p))), 0.0);
  double now = state.param_bytes + state.optimizer_bytes, most = 0, sent = 0;
  const auto send = [&](int64_t k, double bytes) {
    last_sent[static_cast<size_t>(k) % last_sent.size()] = bytes;
    sent = std::accumulate(last_sent.begin(), last_sent.end(), 0.0);
  };
  ComputeAction action = action_at(shape, static_cast<int>(group), 0);
  for (int64_t k = 0; k < actions; ++k) {
    const StageAccount& stage = accounts[static_cast<size_t>(action.stage)];
    const double kept = stage.kept_bytes(recompute[static_cast<size_t>(action.stage)]);
    ComputeAction next{};
    double received = 0;
    if (k + 1 < actions) {
      next = action_at(shape, static_cast<int>(group), k + 1);
      const StageAccount& of = accounts[static_cast<size_t>(next.stage)];
      received = next.backward ? of.out_gradient_bytes : of.in_bytes;
    }
    if (action.backward) {
      now -= kept;
      const bool first = !began[static_cast<size_t>(action.stage)];
      most =
          std::max(most, now + (first ? stage.first_bytes : stage.later_bytes) + sent + received);
      if (first) now += stage.gradient_bytes;
      began[static_cast<size_t>(action.stage)] = true;
      send(k, stage.in_gradient_bytes);
    } else {
      now += kept;
      most = std::max(most, now + sent + received);
      send(k, stage.out_bytes);
    }
    most = std::max(most, now + sent + received);
    action = next;
  }
  return most;
}

BlockModel::State Assessor::group_state(const Draft& draft, size_t group) const {
  const size_t p = draft.groups.size();
  BlockModel::State state;
  for (size_t s = group; s < sheet_.stages.size(); s += p) state += sheet_.stages[s].state;
  // A parameter that several stages of the group use is there once.
  for (const BlockModel::SharedParam& param : model_.shared_params()) {
    std::vector<int> stages;
    for (const uint32_t block : param.users) {
      const int s = draft.stage_of[block];
      if (static_cast<size_t>(s) % p == group) stages.push_back(s);
    }
    std::ranges::sort(stages);
    const auto distinct = std::unique(stages.begin(), stages.end()) - stages.begin();
    for (auto k = distinct; k > 1; --k) {
      state.param_bytes -= param.state.param_bytes;
      state.gradient_bytes -= param.state.gradient_bytes;
      state.optimizer_bytes -= param.state.optimizer_bytes;
    }
  }
  state.optimizer_bytes *= optimizer_share(request_, size(draft.groups[group]));
  return state;
}

double Assessor::held_bytes(size_t stage, bool recompute) const {
  const Stage& of = sheet_.stages[stage];
  return recompute ? of.in.at(of.rows) + of.graph_in.at(of.rows) : of.saved_bytes;
}

double Assessor::group_peak(const Draft& draft, size_t group,
                            const std::vector<bool>& recompute) const {
  if (model_.moments() != nullptr) return group_moment(draft, group, recompute);
  const size_t p = draft.groups.size(), count = sheet_.stages.size();
  double buffers = 0, workspace = 0, recomputed = 0;
  for (size_t s = group; s < count; s += p) {
    const Stage& stage = sheet_.stages[s];
    buffers += 2 * (stage.in.at(stage.rows) + stage.out.at(stage.rows));
    workspace = std::max(workspace, stage.workspace_bytes);
    if (recompute[s]) recomputed = std::max(recomputed, stage.saved_bytes);
  }
  const Pipeline arrangement = order_of(draft, count);
  const auto actions = 2 * draft.micro_batches * draft.interleave;
  double now = 0, most = 0;
  for (int64_t k = 0; k < actions; ++k) {
    const ComputeAction action = action_at(arrangement, static_cast<int>(group), k);
    const auto s = static_cast<size_t>(action.stage);
    now += (action.backward ? -1 : 1) * held_bytes(s, recompute[s]);
    most = std::max(most, now);
  }
  const BlockModel::State state = group_state(draft, group);
  return state.param_bytes + state.gradient_bytes + state.optimizer_bytes + buffers + workspace +
         most + recomputed;
}

double Assessor::need(const Draft& draft, size_t group, const std::vector<bool>& recompute) const {
  return draft.interleave > 1 ? group_peak(draft, group, recompute)
                              : stage_peak(draft, static_cast<int>(group), recompute[group]);
}

void Assessor::choose_recompute(Draft& draft) {
  const auto count = static_cast<size_t>(draft.stages());
  draft.recompute.assign(count, request_.recompute == Recompute::always);
  if (!is_free(request_.recompute)) return;
  fill(draft);
  if (draft.interleave == 1) {
    for (size_t s = 0; s < count; ++s) {
      const double plain = need(draft, s, draft.recompute);
      if (plain <= available_bytes_) continue;
      // What cannot fit either way keeps the smaller need, so that the reason is the honest one.
      draft.recompute[s] = true;
      draft.recompute[s] = need(draft, s, draft.recompute) < plain;
    }
    return;
  }
  const size_t p = draft.groups.size();
  for (size_t group = 0; group < p; ++group) {
    while (need(draft, group, draft.recompute) > available_bytes_) {
      size_t best = count;
      double best_rate = 0;
      for (size_t s = group; s < count; s += p) {
        if (draft.recompute[s]) continue;
        const Stage& stage = sheet_.stages[s];
        const double gain = stage.saved_bytes - held_bytes(s, true);
        const double rate = gain / std::max(stage.forward_ns, 1e-9);
        if (gain > 0 && rate > best_rate) {
          best = s;
          best_rate = rate;
        }
      }
      if (best == count) break;
      draft.recompute[best] = true;
    }
  }
}

double Assessor::peak_bytes(const Draft& draft) {
  fill(draft);
  double peak = 0;
  for (size_t group = 0; group < draft.groups.size(); ++group) {
    peak = std::max(peak, draft.interleave > 1
                              ? group_peak(draft, group, draft.recompute)
                              : stage_peak(draft, static_cast<int>(group), draft.recompute[group]));
  }
  return peak;
}

}  // namespace rannc::partition
