#include "partition/candidates/memory_limit.h"

#include <algorithm>
#include <map>

namespace rannc::partition {
namespace {

double step_peak_bytes(const plan::Plan& plan) {
  return static_cast<double>(std::ranges::max(plan.step.peak_bytes));
}

}  // namespace

double peak_bytes(const plan::Plan& plan) {
  double most = 0;
  for (const plan::Stage& stage : plan.stages) {
    most = std::max(most, static_cast<double>(stage.predicted->peak_bytes));
  }
  return most;
}

bool MemoryLimit::fits(const plan::Plan& plan) const {
  return step_peak_bytes(plan) <= limit_bytes;
}

bool MemoryLimit::fits_beside_model(const plan::Plan& plan) const {
  struct Needs {
    double peak = 0, state = 0;
  };
  std::map<plan::Rank, Needs> needs;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Prediction& predicted = *plan.stages[s].predicted;
    for (const plan::Rank rank : plan.stages[s].ranks) {
      needs[rank].state += static_cast<double>(predicted.optimizer_bytes + predicted.param_bytes);
      needs[rank].peak = static_cast<double>(plan.step.peak_bytes[s]);  // of all its stages
    }
  }
  return std::ranges::all_of(needs, [&](const auto& rank) {
    return rank.second.peak - rank.second.state + held_bytes <= limit_bytes;
  });
}

bool MemoryLimit::is_tight(const Found& found) const {
  // At most twice as much, such as half the micro-batches, is the next larger plan.
  return peak_bytes(found.plan) > limit_bytes / 2 ||
         std::ranges::any_of(found.runners_up, [&](const RunnerUp& other) {
           return static_cast<double>(other.peak_bytes) > limit_bytes;
         });
}

std::optional<Found> smaller_until_it_fits(
    const MemoryLimit& memory, Request request,
    const std::function<std::optional<Found>(const Request&)>& search) {
  while (true) {
    std::optional<Found> found = search(request);
    if (!found || memory.fits(found->plan)) return found;
    // As much less by the account as its step holds too much: not this plan again.
    const double most = peak_bytes(found->plan) * memory.limit_bytes / step_peak_bytes(found->plan);
    request.memory_margin = 1 - most / memory.device_bytes;
  }
}

}  // namespace rannc::partition
