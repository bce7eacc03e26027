#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"

namespace rannc::runtime {

/// Running statistics (BatchNorm) of a stage with several replicas. Each replica normalises by its
/// share; per micro-batch, the statistics take the row-weighted mean over the replicas.
///
/// An update is r -> decay * r + s with s from the activations alone, decay = (1 - momentum), or
/// the product of several when the module is called several times. So every micro-batch may start
/// from the value r0 that all replicas share, and the updates are put in a row afterwards: with X_k
/// the weighted mean of the results of micro-batch k, r_{k+1} = X_k + decay (r_k - r0).
class RunningStatistics {
 public:
  RunningStatistics() = default;
  /// `stage` is the stage's own graph. Throws PlanError when there are several replicas and another
  /// operator than batch_norm writes numbers to a buffer that depend on the replica's rows.
  RunningStatistics(const ir::Graph& stage, const std::vector<std::string>& state_names,
                    int replicas);

  /// False with one replica: buffers are then simply updated in order.
  [[nodiscard]] bool shared() const { return !buffers_.empty(); }

  /// Puts copies of the statistics into `state`, for one micro-batch to update; returns them.
  [[nodiscard]] std::vector<at::Tensor> lend(std::vector<at::Tensor>& state) const;

  /// Sums of the replicas that are under way.
  struct Sums {
    at::Tensor of_micro_batches;
    comm::Handle handle;
  };
  /// `updated[k]`: the copies of micro-batch k, empty where this replica had no rows;
  /// `weights[k]`: this replica's part of the micro-batch's rows.
  [[nodiscard]] Sums start(const std::vector<std::vector<at::Tensor>>& updated,
                           const std::vector<double>& weights, const std::vector<at::Tensor>& state,
                           comm::Communicator& comm, comm::Stream& stream,
                           std::span<const int> ranks, comm::Purpose purpose) const;
  /// Writes the statistics after all micro-batches into `state`, equal on all of these ranks.
  void finish(const Sums& sums, const std::vector<at::Tensor>& state, comm::Stream& stream) const;

 private:
  struct Buffer {
    size_t index = 0;  ///< in the state
    double decay = 1;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace rannc::runtime
