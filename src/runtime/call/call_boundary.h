#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rannc/ir/graph.h"
#include "runtime/call/gradient_sum.h"
#include "runtime/call/micro_batches.h"
#include "runtime/call/orders.h"
#include "runtime/call/rank_part.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {

/// Where a call meets the user's code: its arguments, its outputs, and the gradients of both.
/// Values of the batch come and go as transfers; scalars are sums over the shares.
class CallBoundary {
 public:
  /// `loss_seed` as in Executor::forward(). What it is given must outlive it.
  CallBoundary(const RankPart& part, const Orders& orders, std::vector<at::Tensor> inputs,
               double loss_seed);

  /// Adds what has to be known of the whole batch to the arguments. Every rank calls it.
  void run_prelude(const std::vector<at::Tensor>& buffers);

  // Rows of this rank's batch, of values that are arguments or returned.
  [[nodiscard]] const at::Tensor& input(ir::ValueId value) const;
  [[nodiscard]] Assembly& own_output(ir::ValueId value);
  [[nodiscard]] const at::Tensor& output_gradient(ir::ValueId value) const;
  [[nodiscard]] Assembly& input_gradient(ir::ValueId value);

  /// Adds a share's part of the scalar outputs, after its forward.
  void add_scalars(const LocalStage& local, const MicroBatch& batch);
  /// Sums the scalar outputs over all ranks. Every rank calls it.
  void sum_scalars();
  /// The same in two steps.
  void start_sum();
  void finish_sum();
  /// Adds a share's part of their gradients to those of its outputs, before its backward.
  void add_scalar_gradients(const LocalStage& local, MicroBatch& batch) const;

  /// [graph output]; undefined where it is not returned. Frees the arguments.
  [[nodiscard]] std::vector<at::Tensor> take_outputs();

  /// The backward that runs inside a forward starts from the loss.
  void seed_loss();
  /// The gradient that has come in for the loss, per unit of its seed; undefined: none flows.
  [[nodiscard]] at::Tensor gradient_of_loss(const std::vector<at::Tensor>& output_grads) const;
  /// Under gpipe a backward starts from gradients of this rank's loss: [graph output].
  void seed_outputs(const std::vector<at::Tensor>& output_grads);

  /// Appends the gradients of the arguments; they may be added to by whoever gets them.
  void take_gradients(std::vector<at::Tensor>& gradients);
  /// Appends them, to be read.
  void show_gradients(std::vector<at::Tensor>& gradients) const;

  /// Removes the gradients of an earlier backward.
  void reset_gradients();
  void forget();

 private:
  [[nodiscard]] at::Tensor finish_output(size_t index);
  [[nodiscard]] double scalar_weight(ir::ValueId value, const MicroBatch& batch) const;

  const RankPart& part_;
  const Orders& orders_;
  double loss_seed_;
  std::vector<at::Tensor> inputs_;        // [graph input]; until take_outputs()
  std::vector<at::Tensor> scalars_;       // [scalar output]: sums so far, float64 or complex128
  ScalarSum sum_;                         // of these, under way
  std::vector<Assembly> own_outputs_;     // [output value]: this rank's rows
  std::vector<at::Tensor> output_grads_;  // [output value]: of the loss of all ranks
  std::vector<Assembly> input_grads_;     // [argument]
};

}  // namespace rannc::runtime
