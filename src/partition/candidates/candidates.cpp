#include "rannc/partition/candidates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "partition/candidates/memory_limit.h"
#include "partition/candidates/micro_batch_numbers.h"
#include "partition/evaluate/write_notes.h"
#include "rannc/cost/accumulation.h"
#include "rannc/partition/other_plans.h"
#include "rannc/util/error.h"
#include "rannc/util/log.h"

namespace rannc::partition {
namespace {

using Clock = std::chrono::steady_clock;

/// Plans of other arrangements that run before the first step, and the time to find them, after
/// which no other is searched for.
/// tuned by: a deadline: what a first step may wait.
/// without it: the first step waits longer for plans that are further behind.
constexpr size_t kMostArrangements = 3;
constexpr std::chrono::seconds kMostPlanningTime{2};

Request with_numbers(Request request, std::vector<int64_t> micro_batches) {
  request.micro_batches = std::move(micro_batches);
  return request;
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
                       PlannerOptions options, Allowed allowed, double held_bytes)
    : step_(std::move(step)),
      profile_(cost::with_accumulation(step_->profile(), step_->costs().accumulate_ns_per_byte)),
      wanted_(std::move(request)),
      request_(wanted_),
      options_(std::move(options)),
      allowed_(allowed),
      held_bytes_(held_bytes) {}

const plan::Plan& Candidates::best() { return found().plan; }

void Candidates::limit_memory(double device_bytes) {
  step_ = std::make_shared<predict::StepModel>(step_->with_memory(device_bytes));
  if (!found_ || memory().fits(found_->plan)) return;
  found_.reset();
  request_ = wanted_;  // with less memory it may learn something else
}

const Found& Candidates::found() {
  while (!found_) {
    Found planned = search();
    if (!planned.plan.feasible) throw InfeasibleError(planned.plan.reason);
    try {
      planned.plan = completed(*step_, std::move(planned.plan));
    } catch (const PlanError&) {  // such as a share in which there is nothing to normalise
      std::vector<int64_t> fewer = numbers_below(request_, planned.plan.micro_batches);
      if (fewer.empty()) throw;
      request_.micro_batches = std::move(fewer);  // nor is it for any other plan
      continue;
    }
    found_ = memory().fits(planned.plan) ? std::move(planned) : fitting(std::move(planned));
  }
  return *found_;
}

/// What is found for the request and is allowed; from here on the search looks at nothing else.
Found Candidates::search() {
  const auto find = [this](const Request& request) {
    return find_plan(profile_, step_->cluster(), request, options_);
  };
  Found first = find(request_);
  Request narrower = narrowed(request_, allowed_, first.plan, step_->cluster().ranks(),
                              [&](const Request& request) { return find(request).plan; });
  if (narrower == request_) return first;
  request_ = std::move(narrower);
  return find(request_);
}

/// The fastest of the arrangements that were found of which a rank can hold a step, where that is
/// not so of `planned`; `planned` where there is none.
Found Candidates::fitting(Found planned) const {
  std::vector<RunnerUp> arrangements{
      {.arrangement = arrangement_of(planned.plan), .iteration_ns = planned.plan.iteration_ns}};
  for (const RunnerUp& other : planned.runners_up) {
    if (static_cast<double>(other.peak_bytes) <= memory().limit_bytes) {
      arrangements.push_back(other);
    }
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

/// The best plan of `arrangement` of which a rank can hold a step; none where there is none.
std::optional<Found> Candidates::of_arrangement(const Found& planned,
                                                const Arrangement& arrangement,
                                                Request request) const {
  const auto search = [&](const Request& smaller) -> std::optional<Found> {
    Found found =
        plan_of_arrangement(profile_, step_->cluster(), smaller, quick(), planned, arrangement);
    if (!found.plan.feasible) return std::nullopt;
    found.plan = completed(*step_, std::move(found.plan));
    return found;
  };
  try {
    return smaller_until_it_fits(memory(), std::move(request), search);
  } catch (const PlanError&) {  // such as a share in which there is nothing to normalise
    return std::nullopt;
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
  if (!memory().fits(changed)) return std::nullopt;
  return changed;
}

std::vector<plan::Plan> Candidates::of_other_arrangements(const plan::Plan& plan,
                                                          double slower_by) {
  if (!memory().fits_beside_model(plan)) return {};
  const Found planned{plan, found().runners_up};
  const Clock::time_point end = Clock::now() + kMostPlanningTime;
  const double longest_ns = (1 + slower_by) * static_cast<double>(plan.iteration_ns);
  std::vector<plan::Plan> plans;
  std::vector<Arrangement> seen{arrangement_of(plan)};
  if (std::optional<plan::Plan> fewer = with_fewer_micro_batches(planned)) {
    seen.push_back(arrangement_of(*fewer));
    plans.push_back(std::move(*fewer));
  }
  for (const RunnerUp& other : planned.runners_up) {
    if (std::ranges::find(seen, other.arrangement) != seen.end()) continue;
    if (static_cast<double>(other.iteration_ns) > longest_ns) break;
    if (plans.size() == kMostArrangements || Clock::now() > end) break;
    seen.push_back(other.arrangement);
    if (std::optional<plan::Plan> best = best_of(planned, other.arrangement)) {
      plans.push_back(std::move(*best));
    }
  }
  return plans;
}

/// The best plan with fewer micro-batches than that of `planned`, which may have so many because
/// memory demands it.
std::optional<plan::Plan> Candidates::with_fewer_micro_batches(const Found& planned) const {
  const Request request =
      with_numbers(request_, numbers_below(request_, planned.plan.micro_batches));
  if (request.micro_batches.empty() || !memory().is_tight(planned)) return std::nullopt;
  const plan::Plan other = make_plan(profile_, step_->cluster(), request, quick());
  if (!other.feasible) return std::nullopt;
  return to_run(planned, arrangement_of(other), request);
}

/// The best plan of `arrangement`; no share becomes a single row that is more in `planned`.
std::optional<plan::Plan> Candidates::best_of(const Found& planned,
                                              const Arrangement& arrangement) const {
  const std::vector<int> own = arrangement_of(planned.plan).replicas;
  const int64_t least_rows =
      std::min<int64_t>(2, fewest_rows(request_, own, planned.plan.micro_batches));
  const Request request =
      with_numbers(request_, numbers_with_rows(request_, arrangement.replicas, least_rows));
  if (request.micro_batches.empty()) return std::nullopt;
  log::info("deploy",
            fmt::format("a plan with replicas {}, schedule {}, to run it, too",
                        fmt::join(arrangement.replicas, "+"), plan::name(arrangement.schedule)));
  return to_run(planned, arrangement, request);
}

/// of_arrangement() for a run beside the plan of `planned`.
std::optional<plan::Plan> Candidates::to_run(const Found& planned, const Arrangement& arrangement,
                                             Request request) const {
  std::optional<Found> found = of_arrangement(planned, arrangement, std::move(request));
  if (!found || !memory().fits_beside_model(found->plan)) return std::nullopt;
  return std::move(found->plan);
}

std::vector<int64_t> Candidates::other_micro_batches(const plan::Plan& plan) const {
  return numbers_worth_a_run(request_, plan);
}

/// Small problems as large ones, as these searches are several, of which none is what a listener
/// waits for.
PlannerOptions Candidates::quick() const {
  PlannerOptions options = options_;
  options.exactly = false;
  options.progress = {};
  return options;
}

MemoryLimit Candidates::memory() const {
  const double device_bytes = step_->cluster().device_memory_bytes;
  return {.device_bytes = device_bytes,
          .limit_bytes = device_bytes * (1 - request_.memory_margin),
          .held_bytes = held_bytes_};
}

plan::Plan with_trials(plan::Plan plan, const std::vector<TriedPlan>& arrangements,
                       const std::vector<TriedPlan>& numbers) {
  plan.notes = with_trial_notes(plan.notes, arrangements, numbers);
  return plan;
}

}  // namespace rannc::partition
