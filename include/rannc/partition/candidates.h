#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rannc/cost/graph_profile.h"
#include "rannc/partition/allowed.h"
#include "rannc/partition/options.h"
#include "rannc/partition/planner.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"
#include "rannc/predict/step_model.h"

// Plans of a training job: what the planner says of them, and what the job itself knows.
namespace rannc::partition {

/// `plan`, an answer of find_plan() for the job of `step`, as the job runs and saves it: with its
/// modules, with what `step` predicts, and with the memory of a device. Throws PlanError where the
/// model refuses the plan, such as a share in which there is nothing to normalise.
[[nodiscard]] plan::Plan completed(const predict::StepModel& step, plan::Plan plan);

struct MemoryLimit;

/// The plans of one job: the best one, and others that may be worth a run beside it. All are
/// completed(), and a rank can hold what their steps are predicted to need.
class Candidates {
 public:
  /// `options` of every search; `held_bytes`: what a rank with the whole model holds before the
  /// first step.
  Candidates(std::shared_ptr<const predict::StepModel> step, Request request,
             PlannerOptions options, Allowed allowed, double held_bytes);

  /// The best one. Where none of those that were found fits by the step's own prediction, it is the
  /// one that the search took. Throws InfeasibleError where the search finds none, and PlanError
  /// where the model refuses every number of micro-batches.
  [[nodiscard]] const plan::Plan& best();

  /// From here on a plan may use only so much of a device. What best() has found stays if it fits.
  void limit_memory(double device_bytes);

  /// What best() would have been, had the search found `plan`, an answer of this, with `count`
  /// micro-batches. None where that is not possible or does not fit.
  [[nodiscard]] std::optional<plan::Plan> with_micro_batches(const plan::Plan& plan,
                                                             int64_t count) const;

  /// Plans of other arrangements that may be worth a run beside `plan`, an answer of this: the best
  /// of each, those with fewer micro-batches first, then the fastest by operators, but none slower
  /// than `plan` by more than the share `slower_by`. Every rank has the whole model until one of
  /// them is taken, so there are none where that is too much for a run of `plan`.
  [[nodiscard]] std::vector<plan::Plan> of_other_arrangements(const plan::Plan& plan,
                                                              double slower_by);

  /// Numbers of micro-batches that may be worth a run beside that of `plan`.
  [[nodiscard]] std::vector<int64_t> other_micro_batches(const plan::Plan& plan) const;

 private:
  [[nodiscard]] const Found& found();
  [[nodiscard]] Found search();
  [[nodiscard]] Found fitting(Found planned) const;
  [[nodiscard]] std::optional<Found> of_arrangement(const Found& planned,
                                                    const Arrangement& arrangement,
                                                    Request request) const;
  [[nodiscard]] std::optional<plan::Plan> to_run(const Found& planned,
                                                 const Arrangement& arrangement,
                                                 Request request) const;
  [[nodiscard]] std::optional<plan::Plan> with_fewer_micro_batches(const Found& planned) const;
  [[nodiscard]] std::optional<plan::Plan> best_of(const Found& planned,
                                                  const Arrangement& arrangement) const;
  [[nodiscard]] PlannerOptions quick() const;
  [[nodiscard]] MemoryLimit memory() const;

  std::shared_ptr<const predict::StepModel> step_;
  cost::GraphProfile profile_;  ///< with what the step adds to each micro-batch but the first
  Request wanted_;
  Request request_;  ///< narrows as the search learns what the job refuses
  PlannerOptions options_;
  Allowed allowed_;
  double held_bytes_;
  std::optional<Found> found_;
};

/// A plan that ran before the first step.
struct TriedPlan {
  Arrangement arrangement;
  int64_t micro_batches = 1;
  double run_ns = 0;  ///< the shortest of its runs
};

/// `plan`, with notes of what ran: plans of several arrangements, and those of one arrangement with
/// several numbers of micro-batches. What ran alone was compared with nothing, and is not noted.
[[nodiscard]] plan::Plan with_trials(plan::Plan plan, const std::vector<TriedPlan>& arrangements,
                                     const std::vector<TriedPlan>& numbers);

}  // namespace rannc::partition
