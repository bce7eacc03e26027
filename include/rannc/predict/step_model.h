#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/cost/saved_storage.h"
#include "rannc/ir/graph.h"
#include "rannc/plan/outputs.h"
#include "rannc/plan/plan.h"
#include "rannc/predict/measured_runs.h"
#include "rannc/predict/step_memory.h"
#include "rannc/predict/step_time.h"

namespace rannc::predict {

/// A plan whose step is predicted from runs of it.
struct Calibration {
  plan::Plan plan;
  StepCosts costs;       ///< of its actions
  double beyond_ns = 0;  ///< what the runs took beyond what follows from these
};

/// Predicts a training step of one job under any plan: its time, who waits, and what it holds.
class StepModel {
 public:
  /// `graph` of the model and `profile` of it; `costs` and `optimizer` by parameters of the
  /// profile; `local_rows` of the first batch, [rank].
  StepModel(ir::Graph graph, cost::GraphProfile profile, cost::Cluster cluster, StepCosts costs,
            OptimizerMemory optimizer, std::vector<cost::SavedStorage> saved,
            std::vector<int64_t> local_rows, plan::Outputs outputs);

  /// The same job on devices of which a plan may use so much.
  [[nodiscard]] StepModel with_memory(double device_bytes) const;

  /// `plan` for this job: with Plan::made_for, Plan::step and the Plan::bucket_bytes that it is
  /// meant for. Throws PlanError as plan::lower() does, as do all others here.
  [[nodiscard]] plan::Plan predict(plan::Plan plan) const;

  /// `plan`, which predict() has made, with the times that follow from `runs` of it.
  [[nodiscard]] Calibration calibrated(plan::Plan plan, const MeasuredRuns& runs) const;

  /// Time of a step, and what each rank waits, if the ranks compute `factors` times as long,
  /// [rank]; nothing else.
  [[nodiscard]] plan::StepPrediction at_speed(const Calibration& calibration,
                                              const std::vector<double>& factors) const;

  [[nodiscard]] const ir::Graph& graph() const { return graph_; }
  [[nodiscard]] const cost::GraphProfile& profile() const { return profile_; }
  [[nodiscard]] const cost::Cluster& cluster() const { return cluster_; }
  [[nodiscard]] const StepCosts& costs() const { return costs_; }

 private:
  [[nodiscard]] plan::Program program(const plan::Plan& plan) const;
  [[nodiscard]] std::vector<int64_t> peaks(const plan::Plan& plan, const plan::Program& program,
                                           int64_t bucket_bytes) const;
  [[nodiscard]] StepTime time(const plan::Plan& plan, const plan::Program& program,
                              const StepCosts& costs) const;
  void predict_time(plan::Plan& plan, const plan::Program& program, const StepCosts& costs) const;

  ir::Graph graph_;
  cost::GraphProfile profile_;
  cost::Cluster cluster_;
  StepCosts costs_;
  OptimizerMemory optimizer_;
  std::vector<cost::SavedStorage> saved_;
  std::vector<int64_t> local_rows_;
  plan::Outputs outputs_;
};

}  // namespace rannc::predict
