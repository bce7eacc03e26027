#include "rannc/predict/step_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "rannc/ir/text.h"
#include "rannc/plan/program.h"
#include "rannc/predict/bucket_size.h"

namespace rannc::predict {
namespace {

using plan::Action;
using plan::ActionKind;

/// A message that takes no time.
constexpr cost::Link kFree{.bandwidth_bytes_per_s = 1e18, .latency_ns = 0};

bool computes(const Action& action) {
  return action.kind == ActionKind::forward || action.kind == ActionKind::backward;
}

int64_t rounded(double value) { return std::llrint(value); }

std::vector<int64_t> rounded(const std::vector<double>& values) {
  std::vector<int64_t> result;
  for (const double value : values) result.push_back(rounded(value));
  return result;
}

/// `costs` by `runs`. `whole`: with the whole step of the optimizer, of which a part was tried.
StepCosts measured_costs(StepCosts costs, const MeasuredRuns& runs, bool whole) {
  costs.optimizer_ns.clear();  // it is in `around_ns`
  costs.measured = runs.actions;
  costs.around_ns = runs.around_ns;
  for (size_t rank = 0; rank < costs.around_ns.size(); ++rank) {
    costs.around_ns[rank] += runs.optimizer_ns[rank] * (whole ? runs.optimizer_factor[rank] : 1);
  }
  return costs;
}

/// `costs` without what communication was measured to take.
StepCosts of_computing(StepCosts costs, const plan::Program& program) {
  for (size_t rank = 0; rank < costs.measured.size(); ++rank) {
    for (size_t at = 0; at < costs.measured[rank].size(); ++at) {
      if (!computes(program.actions[rank][at])) costs.measured[rank][at] = {};
    }
  }
  return costs;
}

}  // namespace

StepModel::StepModel(ir::Graph graph, cost::GraphProfile profile, cost::Cluster cluster,
                     StepCosts costs, OptimizerMemory optimizer,
                     std::vector<cost::SavedStorage> saved, std::vector<int64_t> local_rows,
                     plan::Outputs outputs)
    : graph_(std::move(graph)),
      profile_(std::move(profile)),
      cluster_(cluster),
      costs_(std::move(costs)),
      optimizer_(std::move(optimizer)),
      saved_(std::move(saved)),
      local_rows_(std::move(local_rows)),
      outputs_(outputs) {}

StepModel StepModel::with_memory(double device_bytes) const {
  StepModel other = *this;
  other.cluster_.device_memory_bytes = device_bytes;
  return other;
}

plan::Plan StepModel::predict(plan::Plan plan) const {
  const plan::Program program = this->program(plan);
  plan.made_for = {.fingerprint = ir::fingerprint(graph_),
                   .global_batch = std::reduce(local_rows_.begin(), local_rows_.end()),
                   .world = static_cast<int>(local_rows_.size())};
  plan.step = {};
  plan.bucket_bytes = bucket_bytes(plan, cluster_);
  predict_time(plan, program, costs_);
  plan.step.peak_bytes = peaks(plan, program, *plan.bucket_bytes);
  return plan;
}

Calibration StepModel::calibrated(plan::Plan plan, const MeasuredRuns& runs) const {
  const plan::Program program = this->program(plan);
  // Switching between threads, polling, late wake-ups: what the runs took beyond their parts.
  const StepCosts tried = measured_costs(costs_, runs, /*whole=*/false);
  const double beyond_ns = runs.run_ns - time(plan, program, tried).ns;
  StepCosts whole = measured_costs(costs_, runs, /*whole=*/true);
  plan.step.from_operators_ns = plan.step.ns;
  predict_time(plan, program, whole);
  plan.step.ns = std::max<int64_t>(rounded(static_cast<double>(*plan.step.ns) + beyond_ns), 0);
  return {std::move(plan), std::move(whole), beyond_ns};
}

plan::StepPrediction StepModel::at_speed(const Calibration& calibration,
                                         const std::vector<double>& factors) const {
  const plan::Program program = this->program(calibration.plan);
  StepCosts costs = calibration.costs;
  for (size_t rank = 0; rank < factors.size(); ++rank) {
    costs.around_ns.at(rank) *= factors[rank];
    for (size_t at = 0; at < costs.measured[rank].size(); ++at) {
      if (computes(program.actions[rank][at])) costs.measured[rank][at].work_ns *= factors[rank];
    }
  }
  const StepTime step = time(calibration.plan, program, costs);
  return {.ns = std::max<int64_t>(rounded(step.ns + calibration.beyond_ns), 0),
          .idle_ns = rounded(step.idle_ns)};
}

plan::Program StepModel::program(const plan::Plan& plan) const {
  return plan::lower(plan, graph_, local_rows_, /*training=*/true, outputs_);
}

std::vector<int64_t> StepModel::peaks(const plan::Plan& plan, const plan::Program& program,
                                      int64_t bucket_bytes) const {
  return rounded(
      step_peak_bytes(program, plan, graph_, profile_, saved_, optimizer_, bucket_bytes));
}

StepTime StepModel::time(const plan::Plan& plan, const plan::Program& program,
                         const StepCosts& costs) const {
  return step_time(program, plan, graph_, profile_, cluster_, costs);
}

void StepModel::predict_time(plan::Plan& plan, const plan::Program& program,
                             const StepCosts& costs) const {
  const StepTime step = time(plan, program, costs);
  plan.step.ns = rounded(step.ns);
  plan.step.idle_ns = rounded(step.idle_ns);
  // Were messages free, a rank would still wait for others to compute.
  cost::Cluster free = cluster_;
  free.intra_host = free.inter_host = kFree;
  free.links_per_host = 1;
  plan.step.bubble_ns = rounded(
      step_time(program, plan, graph_, profile_, free, of_computing(costs, program)).idle_ns);
}

}  // namespace rannc::predict
