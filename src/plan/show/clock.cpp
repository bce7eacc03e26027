#include "plan/show/clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// Micro-batches times stages of a plan that the timeline of `rannc show` works out: it keeps every
/// one, where the planner keeps a few.
/// tuned by: a bound on memory.
/// without it: a file with large counts would take gigabytes to be shown.
constexpr int64_t kMostShownTurns = int64_t{1} << 20;

constexpr double kUnknown = std::numeric_limits<double>::infinity();

int groups_of(const Plan& plan) {
  const auto stages = static_cast<int64_t>(plan.stages.size());
  for (int64_t stage = 0; stage < stages; ++stage) {
    if (!plan.stages[static_cast<size_t>(stage)].predicted) {
      throw PlanError(fmt::format(
          "stage {} has no predicted times to draw; 'rannc evaluate' computes them", stage));
    }
  }
  if (plan.micro_batches > kMostShownTurns / stages) {
    throw PlanError(fmt::format("{} micro-batches in {} stages are too many to draw",
                                plan.micro_batches, stages));
  }
  if (plan.schedule != Schedule::interleaved) return static_cast<int>(stages);
  const int64_t groups = stages / plan.interleave;
  if (plan.interleave < 2 || stages % plan.interleave != 0 || groups < 2 ||
      plan.micro_batches % groups != 0) {
    throw PlanError(fmt::format("{} stages and {} micro-batches cannot be interleaved by {}",
                                stages, plan.micro_batches, plan.interleave));
  }
  return static_cast<int>(groups);
}

/// Ends of actions and of transfers, filled in as the groups advance.
class Clock {
 public:
  Clock(const Plan& plan, const std::vector<TransferNote>& transfers)
      : plan_(plan), transfers_(transfers) {
    const auto count = static_cast<size_t>(plan.micro_batches);
    forward_end_.assign(plan.stages.size(), std::vector<double>(count, kUnknown));
    arrived_.assign(transfers.size(), std::vector<double>(count, kUnknown));
    returned_ = arrived_;
    into_.resize(plan.stages.size());
    out_of_.resize(plan.stages.size());
    for (size_t i = 0; i < transfers.size(); ++i) {
      into_[static_cast<size_t>(transfers[i].to)].push_back(i);
      out_of_[static_cast<size_t>(transfers[i].from)].push_back(i);
    }
  }

  /// When its data is there; infinity: that is not known yet.
  [[nodiscard]] double ready(const Compute& action) const {
    const auto stage = static_cast<size_t>(action.stage);
    const auto k = static_cast<size_t>(action.micro_batch);
    double time = action.forward ? 0 : forward_end_[stage][k];
    for (const size_t i : action.forward ? into_[stage] : out_of_[stage]) {
      if (!action.forward && !transfers_[i].grad) continue;
      time = std::max(time, (action.forward ? arrived_ : returned_)[i][k]);
    }
    return time;
  }

  double run(const Compute& action, double begin) {
    const auto stage = static_cast<size_t>(action.stage);
    const auto k = static_cast<size_t>(action.micro_batch);
    const Prediction& times = *plan_.stages[stage].predicted;
    const double end =
        begin + static_cast<double>(action.forward ? times.forward_ns : times.backward_ns);
    if (action.forward) forward_end_[stage][k] = end;
    for (const size_t i : action.forward ? out_of_[stage] : into_[stage]) {
      std::vector<double>& arrivals = (action.forward ? arrived_ : returned_)[i];
      const double free = k == 0 ? 0 : arrivals[k - 1];
      arrivals[k] = std::max(end, free) +
                    (action.forward ? transfers_[i].forward_ns : transfers_[i].backward_ns);
    }
    return end;
  }

 private:
  const Plan& plan_;
  const std::vector<TransferNote>& transfers_;
  std::vector<std::vector<double>> forward_end_;         // [stage][micro-batch]
  std::vector<std::vector<double>> arrived_, returned_;  // [transfer][micro-batch]
  std::vector<std::vector<size_t>> into_, out_of_;       // [stage] transfers
};

}  // namespace

std::vector<std::vector<TimedCompute>> compute_times(const Plan& plan,
                                                     const std::vector<TransferNote>& transfers) {
  const int groups = groups_of(plan);
  std::vector<std::vector<TimedCompute>> times(static_cast<size_t>(groups));
  std::vector<std::vector<Compute>> orders;
  for (int group = 0; group < groups; ++group) {
    orders.push_back(compute_order(plan.schedule, static_cast<int>(plan.stages.size()),
                                   plan.interleave, static_cast<int>(plan.micro_batches), group,
                                   /*training=*/true));
  }
  Clock clock(plan, transfers);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t group = 0; group < orders.size(); ++group) {
      while (times[group].size() < orders[group].size()) {
        const Compute& action = orders[group][times[group].size()];
        const double ready = clock.ready(action);
        if (ready == kUnknown) break;
        const double begin = std::max(ready, times[group].empty() ? 0 : times[group].back().end_ns);
        times[group].push_back({action, begin, clock.run(action, begin)});
        progress = true;
      }
    }
  }
  return times;
}

std::vector<TransferNote> chain_of(const Plan& plan) {
  std::vector<TransferNote> chain;
  for (int stage = 0; stage + 1 < static_cast<int>(plan.stages.size()); ++stage) {
    chain.push_back({.from = stage, .to = stage + 1});
  }
  return chain;
}

}  // namespace rannc::plan
