#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "rannc/runtime/executor.h"
#include "runtime/call/call_boundary.h"
#include "runtime/call/call_gradients.h"
#include "runtime/call/issues.h"
#include "runtime/call/micro_batches.h"
#include "runtime/call/orders.h"
#include "runtime/call/rank_part.h"
#include "runtime/call/recorder.h"
#include "runtime/call/row_moves.h"

namespace rannc::runtime {

/// One iteration of a Program on one rank: walks the rank's actions, and computes its stages. The
/// rows that it needs are moved by RowMoves, and the gradients that it makes are summed by
/// CallGradients.
class PipelineCall final : public Call {
 public:
  /// As Executor::forward() was called: check_arguments() has passed.
  struct Arguments {
    std::vector<at::Tensor> inputs;
    const std::vector<at::Tensor>& parameters;
    std::vector<at::Tensor> buffers;
    bool with_backward = false;
    bool no_sync = false;
    double loss_seed = 1;
  };

  PipelineCall(std::shared_ptr<const RankPart> part, std::shared_ptr<const Orders> orders,
               int64_t number, Arguments arguments, std::shared_ptr<History> history,
               std::shared_ptr<KeptGradients> kept);
  /// Warns, once in a process, when a loss was never used whose backward has run.
  ~PipelineCall() override;
  PipelineCall(const PipelineCall&) = delete;
  PipelineCall& operator=(const PipelineCall&) = delete;

  /// Runs the actions up to return_outputs. To be called once, first.
  void forward();
  [[nodiscard]] const std::vector<at::Tensor>& outputs() const override { return outputs_; }
  [[nodiscard]] std::vector<at::Tensor> backward(std::vector<at::Tensor> output_grads,
                                                 bool keep_graph, BackwardOf of) override;
  [[nodiscard]] bool communicates() const override;

 private:
  [[nodiscard]] c10::OptionalDeviceGuard current_device() const;
  [[nodiscard]] std::vector<at::Tensor> scale_gradients(const std::vector<at::Tensor>& output_grads,
                                                        bool keep_graph);
  [[nodiscard]] std::vector<at::Tensor> run_backward(std::vector<at::Tensor> output_grads,
                                                     bool keep_graph, const BackwardOf& of);
  void find_flows(int64_t outputs);
  void prepare_backward();
  [[nodiscard]] std::vector<at::Tensor> take_gradients();
  void forget();
  [[noreturn]] void throw_no_backward() const;
  [[noreturn]] void throw_given_away() const;

  void run(size_t begin, size_t end);
  void walk(size_t begin, size_t end, RowMoves& moves);
  void walk_in_order(size_t begin, size_t end, RowMoves& moves);
  void issue(const plan::Communication& communication, RowMoves& moves);
  void act(const plan::Action& action, RowMoves& moves);
  void run_forward(int stage, int micro_batch);
  void run_backward(int stage, int micro_batch);
  void run_backward(const LocalStage& local, MicroBatch& batch, PerCall* per_call,
                    ParameterGathers* gathers);
  [[nodiscard]] RunningStatistics::Updates take_updates(int stage);
  [[nodiscard]] RunningStatistics::Sums start_buffers(int stage);
  void finish_buffers(int stage, const RunningStatistics::Sums& sums);

  [[nodiscard]] const plan::Program& program() const { return orders_->program; }
  [[nodiscard]] const std::vector<plan::Action>& actions() const;
  [[nodiscard]] std::vector<at::Tensor> state_of(const LocalStage& local) const;
  [[nodiscard]] PerCall* per_call(int stage, bool last);
  void write_once(const LocalStage& local, std::vector<at::Tensor>& state);
  [[nodiscard]] std::vector<at::Tensor> arguments_without_rows(const Stage& stage) const;
  [[nodiscard]] std::vector<at::Tensor> take_inputs(const LocalStage& local, MicroBatch& batch);
  [[nodiscard]] std::shared_ptr<const DrawKey> draw_key(int stage, int micro_batch) const;
  /// The ranks of a stage, ascending.
  [[nodiscard]] std::vector<plan::Rank> replicas_of(int stage) const;
  [[nodiscard]] std::shared_ptr<WholeBatch> whole_batch(int stage, int micro_batch);

  const std::shared_ptr<const RankPart> part_;
  const std::shared_ptr<const Orders> orders_;
  const int64_t number_;
  const bool with_backward_;
  bool finished_ = false;     ///< the gradients are given away, or there are none
  std::vector<bool> flows_;   ///< [value]: it has a gradient in the backward that runs; empty: all
  bool keeps_graph_ = false;  ///< the backward that runs, or ran last, may be repeated
  bool unused_ = false;       ///< the gradients are there, and nobody has asked for them
  DrawSteps draw_steps_;      ///< as they were at the forward
  Recorder recorder_;

  /// Of the phase that runs, where communication has an order; else null.
  std::unique_ptr<Issues> issues_;
  std::map<int, RunningStatistics::Sums> buffer_sums_;  ///< [stage]: issued, not waited for
  /// [stage]: of what its replicas share; null where they share nothing.
  std::vector<std::shared_ptr<ParameterGathers>> gathers_;
  CallGradients gradients_;
  CallBoundary boundary_;
  MicroBatches batches_;
  std::vector<PerCall> per_call_;  ///< [stage]: in the phase that runs
  std::vector<at::Tensor> buffers_;
  /// [buffer] and [parameter] that a call writes once: as it was before.
  std::vector<at::Tensor> found_buffers_;
  std::vector<at::Tensor> found_parameters_;
  std::vector<at::Tensor> outputs_;  ///< [graph output]
};

}  // namespace rannc::runtime
