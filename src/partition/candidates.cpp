#include "rannc/partition/candidates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <utility>

#include "partition/evaluate/write_notes.h"
#include "rannc/cost/accumulation.h"
#include "rannc/partition/other_plans.h"
#include "rannc/util/error.h"
#include "rannc/util/log.h"

namespace rannc::partition {
namespace {

/// Plans of other arrangements that run before the first step, and the time to find them, after
/// which no other is searched for.
/// tuned by: no measurement is known.
/// without it: the first step waits longer for plans that are further behind.
constexpr size_t kMostArrangements = 3;
constexpr std::chrono::seconds kMostPlanning{2};

/// By the account, on the fullest rank.
double peak_bytes(const plan::Plan& plan) {
  double most = 0;
  for (const plan::Stage& stage : plan.stages) {
    most = std::max(most, static_cast<double>(stage.predicted->peak_bytes));
  }
  return most;
}

double step_peak_bytes(const plan::Plan& plan) {
  return static_cast<double>(std::ranges::max(plan.step.peak_bytes));
}

}  // namespace

plan::Plan completed(const predict::StepModel& step, plan::Plan plan) {
  plan = step.predict(std::move(plan));
  const int64_t rows = *plan.made_for.global_batch;
  plan = plan::with_summary(std::move(plan), step.graph(), rows);
  plan.notes = with_memory_of(plan.notes, step.cluster());
  return plan;
}

Candidates::Candidates(std::shared_ptr<const predict::StepModel> step, Request request,
                       PlannerOptions options, double held_bytes)
    : step_(std::move(step)),
      profile_(cost::with_accumulation(step_->profile(), step_->costs().accumulate_ns_per_byte)),
      request_(std::move(request)),
      options_(std::move(options)),
      held_bytes_(held_bytes) {}

const plan::Plan& Candidates::best() { return found().plan; }

const Found& Candidates::found() {
  while (!found_) {
    Found planned = find_plan(profile_, step_->cluster(), request_, options_);
    if (!planned.plan.feasible) throw InfeasibleError(planned.plan.reason);
    try {
      planned.plan = completed(*step_, std::move(planned.plan));
    } catch (const PlanError&) {  // such as a share in which there is nothing to normalise
      std::vector<int64_t> fewer = fewer_than(planned.plan.micro_batches);
      if (fewer.empty()) throw;
      request_.micro_batches = std::move(fewer);  // nor is it for any other plan
      continue;
    }
    found_ = fits(planned.plan) ? std::move(planned) : fitting(std::move(planned));
  }
  return *found_;
}

/// The fastest that fits, where `planned` does not: the account by which the search judges does not
/// know the arrays in which gradients are summed over replicas, nor what the optimizer computes
/// with. `planned` where there is none.
Found Candidates::fitting(Found planned) const {
  std::vector<RunnerUp> arrangements{
      {.arrangement = arrangement_of(planned.plan), .iteration_ns = planned.plan.iteration_ns}};
  for (const RunnerUp& other : planned.runners_up) {
    if (static_cast<double>(other.peak_bytes) <= limit_bytes()) arrangements.push_back(other);
  }
  std::ranges::stable_sort(arrangements, {}, &RunnerUp::iteration_ns);
  std::optional<Found> best;
  for (const RunnerUp& other : arrangements) {
    if (best && other.iteration_ns >= best->plan.iteration_ns) break;
    std::optional<Found> next = of_arrangement(planned, other.arrangement, request_);
    if (next && (!best || next->plan.iteration_ns < best->plan.iteration_ns)) {
      best = std::move(next);
    }
  }
  return best ? std::move(*best) : std::move(planned);
}

/// The best of that arrangement, with the notes of `planned`; none where none fits.
std::optional<Found> Candidates::of_arrangement(const Found& planned,
                                                const Arrangement& arrangement,
                                                Request request) const {
  const double device = step_->cluster().device_memory_bytes;
  while (true) {
    Found next =
        plan_of_arrangement(profile_, step_->cluster(), request, quick(), planned, arrangement);
    if (!next.plan.feasible) return std::nullopt;
    next.plan = completed(*step_, std::move(next.plan));
    if (fits(next.plan)) return next;
    // As much less, by the account, as its step holds too much: so not this plan again.
    const double most = peak_bytes(next.plan) * limit_bytes() / step_peak_bytes(next.plan);
    request.memory_margin = 1 - most / device;
  }
}

std::optional<plan::Plan> Candidates::with_micro_batches(const plan::Plan& plan,
                                                         int64_t count) const {
  plan::Plan changed =
      partition::with_micro_batches(profile_, step_->cluster(), request_, plan, count);
  if (!changed.feasible) return std::nullopt;
  try {
    changed = completed(*step_, std::move(changed));
  } catch (const PlanError&) {  // such as a share in which there is nothing to normalise
    return std::nullopt;
  }
  if (!fits(changed)) return std::nullopt;
  return changed;
}

std::vector<plan::Plan> Candidates::of_other_arrangements(const plan::Plan& plan,
                                                          double slower_by) {
  if (!fits_beside_model(plan)) return {};
  const Found planned{plan, found().runners_up};
  const auto end = std::chrono::steady_clock::now() + kMostPlanning;
  std::vector<plan::Plan> plans;
  std::vector<Arrangement> known{arrangement_of(plan)};
  // So many micro-batches may be there only because memory demands it.
  if (std::optional<plan::Plan> fewer = with_fewer_micro_batches(planned)) {
    known.push_back(arrangement_of(*fewer));
    plans.push_back(std::move(*fewer));
  }
  for (const RunnerUp& other : planned.runners_up) {
    if (std::ranges::count(known, other.arrangement) > 0) continue;
    const auto longest_ns = (1 + slower_by) * static_cast<double>(plan.iteration_ns);
    if (static_cast<double>(other.iteration_ns) > longest_ns) break;
    if (plans.size() == kMostArrangements || std::chrono::steady_clock::now() > end) break;
    known.push_back(other.arrangement);
    std::optional<plan::Plan> best = best_of(planned, other.arrangement);
    if (best) plans.push_back(std::move(*best));
  }
  return plans;
}

std::optional<plan::Plan> Candidates::with_fewer_micro_batches(const Found& planned) const {
  std::vector<int64_t> fewer = fewer_than(planned.plan.micro_batches);
  if (fewer.empty() || !is_tight(planned)) return std::nullopt;
  Request request = request_;
  request.micro_batches = std::move(fewer);
  const plan::Plan other = make_plan(profile_, step_->cluster(), request, quick());
  if (!other.feasible) return std::nullopt;
  try {
    std::optional<Found> best = of_arrangement(planned, arrangement_of(other), request);
    if (best && fits_beside_model(best->plan)) return std::move(best->plan);
  } catch (const PlanError&) {  // as above
  }
  return std::nullopt;
}

/// For a run beside `planned`; none where none fits.
std::optional<plan::Plan> Candidates::best_of(const Found& planned,
                                              const Arrangement& arrangement) const {
  const Arrangement own = arrangement_of(planned.plan);
  const int64_t least = std::min<int64_t>(2, fewest_rows(own.replicas, planned.plan.micro_batches));
  Request request = request_;
  std::erase_if(request.micro_batches,
                [&](int64_t count) { return fewest_rows(arrangement.replicas, count) < least; });
  if (request.micro_batches.empty()) return std::nullopt;
  log::info("deploy",
            fmt::format("a plan with replicas {}, schedule {}, to run it, too",
                        fmt::join(arrangement.replicas, "+"), plan::name(arrangement.schedule)));
  try {
    std::optional<Found> best = of_arrangement(planned, arrangement, std::move(request));
    if (best && fits_beside_model(best->plan)) return std::move(best->plan);
  } catch (const PlanError&) {  // such as a share in which there is nothing to normalise
  }
  return std::nullopt;
}

std::vector<int64_t> Candidates::other_micro_batches(const plan::Plan& plan) const {
  const std::vector<int> replicas = arrangement_of(plan).replicas;
  std::vector<int64_t> counts = request_.micro_batches;
  std::erase_if(counts, [&](int64_t count) {
    if (count <= plan.micro_batches) return count == plan.micro_batches;
    // More fill a pipeline, and of one stage there is none.
    return replicas.size() == 1 || fewest_rows(replicas, count) <= 1;
  });
  return counts;
}

/// Small problems as large ones, as these searches are many.
PlannerOptions Candidates::quick() const {
  PlannerOptions options = options_;
  options.exactly = false;
  return options;
}

std::vector<int64_t> Candidates::fewer_than(int64_t count) const {
  std::vector<int64_t> fewer = request_.micro_batches;
  std::erase_if(fewer, [&](int64_t other) { return other >= count; });
  return fewer;
}

/// In the smallest share. Where it is one, operators may compute in another way: batch
/// normalisation refuses it.
int64_t Candidates::fewest_rows(const std::vector<int>& replicas, int64_t micro_batches) const {
  return request_.global_batch / micro_batches / std::ranges::max(replicas);
}

/// That a plan may take on a rank.
double Candidates::limit_bytes() const {
  return step_->cluster().device_memory_bytes * (1 - request_.memory_margin);
}

bool Candidates::fits(const plan::Plan& plan) const {
  return step_peak_bytes(plan) <= limit_bytes();
}

/// Whether a rank has memory for a run of the plan beside all that it holds before the first step.
/// A run makes no state of the optimizer.
bool Candidates::fits_beside_model(const plan::Plan& plan) const {
  struct Need {
    double peak = 0, state = 0;
  };
  std::map<int, Need> needs;  // [rank]
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Prediction& predicted = *plan.stages[s].predicted;
    for (const int rank : plan.stages[s].ranks) {
      needs[rank].state += static_cast<double>(predicted.optimizer_bytes + predicted.param_bytes);
      needs[rank].peak = static_cast<double>(plan.step.peak_bytes[s]);  // of all its stages
    }
  }
  return std::ranges::all_of(needs, [&](const auto& rank) {
    return rank.second.peak - rank.second.state + held_bytes_ <= limit_bytes();
  });
}

/// Whether with more memory there may be a faster plan. At most twice as much, such as half the
/// micro-batches, is the next larger one.
bool Candidates::is_tight(const Found& planned) const {
  return peak_bytes(planned.plan) > limit_bytes() / 2 ||
         std::ranges::any_of(planned.runners_up, [&](const RunnerUp& other) {
           return static_cast<double>(other.peak_bytes) > limit_bytes();
         });
}

plan::Plan with_trials(plan::Plan plan, const std::vector<TriedPlan>& arrangements,
                       const std::vector<TriedPlan>& numbers) {
  plan.notes = with_trial_notes(plan.notes, arrangements, numbers);
  return plan;
}

}  // namespace rannc::partition
