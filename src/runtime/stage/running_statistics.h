#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"

namespace rannc::runtime {

/// Running statistics of normalisations that need more than an update in order.
///
/// BatchNorm in a stage with several replicas: each replica normalises by its share; per
/// micro-batch, the statistics take the row-weighted mean over the replicas.
///
/// An update is r -> decay * r + s with s from the activations alone, decay = (1 - momentum), or
/// the product of several when the module is called several times. So every micro-batch may start
/// from the value r0 that all replicas share, and the updates are put in a row afterwards: with X_k
/// the weighted mean of the results of micro-batch k, r_{k+1} = X_k + decay (r_k - r0).
///
/// InstanceNorm's are a mean over all rows of the batch, however many micro-batches and replicas it
/// has: r0 plus the row-weighted mean of X_k - r0.
class RunningStatistics {
 public:
  RunningStatistics() = default;
  /// `stage` is the stage's own graph. Throws PlanError when there are several replicas and another
  /// operator than batch_norm writes numbers to a buffer that depend on the replica's rows.
  RunningStatistics(const ir::Graph& stage, const std::vector<std::string>& state_names,
                    int replicas);

  /// False where all buffers are simply updated in order.
  [[nodiscard]] bool lends() const { return !buffers_.empty(); }
  /// Whether the replicas of the stage put theirs together.
  [[nodiscard]] bool shared() const { return lends() && replicas_ > 1; }

  /// Puts copies of the statistics into `state`, for one micro-batch to update; returns them.
  [[nodiscard]] std::vector<at::Tensor> lend(std::vector<at::Tensor>& state) const;

  /// What the micro-batches of one call left on this rank.
  struct Updates {
    /// [micro-batch] its copies; empty where this replica had no rows.
    std::vector<std::vector<at::Tensor>> copies;
    std::vector<double> weights;  ///< [micro-batch] this replica's part of its rows
    std::vector<double> parts;    ///< [micro-batch] its part of the rows of the batch
  };
  /// Sums of the replicas that are under way.
  struct Sums {
    at::Tensor of_micro_batches;
    std::vector<double> parts;
    comm::Handle handle;
  };
  [[nodiscard]] Sums start(const Updates& updates, const std::vector<at::Tensor>& state,
                           comm::Communicator& comm, comm::Stream& stream,
                           std::span<const int> ranks, comm::Purpose purpose) const;
  /// Writes the statistics after all micro-batches into `state`, equal on all of these ranks.
  void finish(const Sums& sums, const std::vector<at::Tensor>& state, comm::Stream& stream) const;
  /// The same for a stage with one replica, which waits for nobody.
  void finish(const Updates& updates, const std::vector<at::Tensor>& state) const;

 private:
  struct Buffer {
    size_t index = 0;  ///< in the state
    double decay = 1;
    bool of_each_row = false;
  };
  [[nodiscard]] at::Tensor weighted(const Updates& updates,
                                    const std::vector<at::Tensor>& state) const;
  void write(const at::Tensor& sums, const std::vector<double>& parts,
             const std::vector<at::Tensor>& state) const;

  std::vector<Buffer> buffers_;
  int replicas_ = 1;
};

}  // namespace rannc::runtime
