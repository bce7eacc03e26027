#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"

namespace rannc::runtime {

/// What one batch normalisation divides by: a number for each channel, float64.
struct BatchStatistics {
  at::Tensor mean;
  at::Tensor variance;  ///< divided by the count
  at::Tensor count;     ///< of values in each channel; one number
};

/// The replicas of a stage that share the batch of one pass, those without rows left out. They run
/// the same nodes in the same order, forward and backward, so each message has its counterparts.
///
/// Where messages of devices have an order (Communicator::is_in_order()), all replicas take part in
/// the statistics: one without rows with zeros, see join_statistics().
class WholeBatch {
 public:
  /// `ranks` ascending. The tags from `first_tag` on are for this pass alone, because reductions
  /// over the same ranks may be under way.
  WholeBatch(std::shared_ptr<comm::Communicator> comm, std::shared_ptr<comm::Stream> stream,
             std::vector<int> ranks, int64_t first_tag, int stage);

  /// The numbers (float64) of all replicas, [replica, number], in the order of ranks.
  /// `message` tells the exchanges of a pass apart; number of tags above: the largest one + 1.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine, int64_t message) const;

  /// For an order of messages: all replicas of the stage, and what is called before the statistics
  /// of a node of the stage's graph are issued. Empty: there is none.
  std::vector<int> all_replicas;
  std::function<void(uint32_t node)> reach_statistics;
  /// By node: a second run of the pass, for recompute, takes these and asks nobody.
  std::unordered_map<uint32_t, BatchStatistics> statistics;

 private:
  [[nodiscard]] at::Tensor gather_on_host(const at::Tensor& mine, int64_t message) const;
  [[nodiscard]] at::Tensor gather_on_device(const at::Tensor& mine, int64_t message) const;

  std::shared_ptr<comm::Communicator> comm_;
  std::shared_ptr<comm::Stream> stream_;
  std::vector<int> ranks_;
  int64_t first_tag_;
  int stage_;
};

/// Numbers that a replica gives to the statistics of a batch normalisation over `channels`.
[[nodiscard]] int64_t statistics_size(int64_t channels, bool forward);
/// Channels of a node of the whole batch.
[[nodiscard]] int64_t channels_of(const ir::Graph& graph, ir::NodeId node);
/// Takes part in statistics as a replica that has none, where messages have an order: all of
/// `replicas` call this or WholeBatch::gather(), at the same place.
void join_statistics(int64_t channels, bool forward, c10::Device device, comm::Communicator& comm,
                     comm::Stream& stream, const std::vector<int>& replicas, int stage);

/// A batch_norm node in training that normalises by the statistics of the whole batch, which the
/// replicas of its stage put together; its backward sums over them likewise. Gradients of weight
/// and bias are those of this replica's rows, to be summed with all others.
class SyncBatchNorm {
 public:
  SyncBatchNorm(const ir::Graph& graph, ir::NodeId node);

  /// As ops::Operator::call().
  void call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results,
            const std::shared_ptr<WholeBatch>& batch) const;

 private:
  [[nodiscard]] std::optional<at::Tensor> operand(size_t argument,
                                                  std::span<at::Tensor> operands) const;
  void update_running(std::span<at::Tensor> operands, const BatchStatistics& statistics) const;

  uint32_t node_;
  std::vector<std::optional<size_t>> places_;  ///< of the tensor arguments among the operands
  double momentum_;
  double eps_;
};

}  // namespace rannc::runtime
