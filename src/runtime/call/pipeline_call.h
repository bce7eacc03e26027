#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rannc/runtime/executor.h"
#include "rannc/runtime/kept_gradients.h"
#include "runtime/call/exchange.h"
#include "runtime/call/gradient_sum.h"
#include "runtime/call/orders.h"
#include "runtime/call/rank_part.h"
#include "runtime/call/recorder.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {

/// This rank's share of one micro-batch in one stage, from its first received row to its release.
struct MicroBatch {
  int64_t rows = 0;
  std::vector<Assembly> inputs;         ///< [stage input]; until the forward pass
  std::vector<at::Tensor> outputs;      ///< [stage output]; until the last one is sent
  int unsent = 0;                       ///< messages that will carry outputs away
  StagePass pass;                       ///< from forward to backward
  std::vector<Assembly> output_grads;   ///< [stage output]; until the backward pass
  std::vector<at::Tensor> input_grads;  ///< [stage input]; until released
};

/// Where a call's gradients are summed over the replicas.
enum class Summing {
  in_program,  ///< by the actions reduce_gradients
  late,        ///< in backward(), together with kept ones, where the Program's backward came before
  kept,        ///< not by this call
};

/// One iteration of a Program on one rank: walks the rank's actions.
class PipelineCall final : public Call {
 public:
  PipelineCall(std::shared_ptr<const RankPart> part, std::shared_ptr<const Orders> orders,
               int64_t number, std::vector<at::Tensor> inputs,
               const std::vector<at::Tensor>& parameters, std::vector<at::Tensor> buffers,
               bool with_backward, bool no_sync, double loss_seed, std::shared_ptr<History> history,
               std::shared_ptr<KeptGradients> kept);
  /// Warns, once in a process, when a loss was never used whose backward has run.
  ~PipelineCall() override;
  PipelineCall(const PipelineCall&) = delete;
  PipelineCall& operator=(const PipelineCall&) = delete;

  /// Runs the actions up to return_outputs. To be called once, first.
  void forward();
  [[nodiscard]] const std::vector<at::Tensor>& outputs() const override { return outputs_; }
  [[nodiscard]] std::vector<at::Tensor> backward(std::vector<at::Tensor> output_grads,
                                                 bool keep_graph) override;
  [[nodiscard]] bool communicates() const override;

 private:
  /// One end of a message: where its rows are taken from, or where they go.
  struct End {
    Assembly* assembly = nullptr;  ///< where they go
    at::Tensor tensor;             ///< where they come from
    int64_t rows = 0;              ///< that the whole tensor has
    plan::RowRange range;
  };

  /// Of a parameter: Program::reductions, and Reduction::parameters there.
  struct SumPlace {
    size_t reduction = 0;
    size_t position = 0;
  };

  void run(size_t begin, size_t end);
  void run(const std::vector<plan::Action>& actions, size_t begin, size_t end, Exchange& exchange);
  void run(const plan::Action& action, Exchange& exchange);
  void run_forward(int stage, int micro_batch);
  void run_backward(int stage, int micro_batch);
  void run_backward(const LocalStage& local, MicroBatch& batch);
  void send(const plan::Action& action, Exchange& exchange);
  void post(const plan::Action& action, Exchange& exchange);
  void receive(const plan::Action& action, Exchange& exchange);
  void sync_buffers(int stage);
  void reduce_outputs();
  void reduce_gradients(size_t reduction);
  void release(MicroBatch& batch);

  [[nodiscard]] End origin(const plan::Transfer& transfer, plan::Direction direction);
  [[nodiscard]] End target(const plan::Transfer& transfer, plan::Direction direction);

  void check_arguments(const std::vector<at::Tensor>& parameters) const;
  void make_aliases(const std::vector<at::Tensor>& parameters);
  void prepare_backward();
  void seed_loss_gradient();
  void seed_output_gradients(const std::vector<at::Tensor>& output_grads);
  void finish_outputs();
  [[nodiscard]] at::Tensor finish_output(size_t index);

  [[nodiscard]] std::vector<at::Tensor> take_gradients();
  void forget();
  [[nodiscard]] at::Tensor gradient_of_loss(const std::vector<at::Tensor>& output_grads) const;
  [[nodiscard]] std::vector<at::Tensor> scaled_gradients(const at::Tensor& factor);
  [[nodiscard]] std::vector<at::Tensor> scaled_copies(const at::Tensor& factor) const;
  [[noreturn]] void throw_given_away() const;
  [[nodiscard]] std::vector<std::vector<plan::Rank>> ranks_of_parameters() const;
  [[nodiscard]] std::vector<std::unique_ptr<GradientSum>> make_sums(
      const std::vector<at::Tensor>& parameters) const;
  [[nodiscard]] std::vector<std::optional<SumPlace>> sum_places() const;
  void prepare_sums();
  void begin_sums(int stage);
  void start_sums(int stage);
  void keep(std::vector<at::Tensor>& gradients);
  void seed_kept_gradients();
  void sum_late(std::vector<at::Tensor>& gradients);

  [[nodiscard]] const plan::Program& program() const { return orders_->program; }
  [[nodiscard]] const LocalStage& local(int stage) const;
  [[nodiscard]] MicroBatch& batch(int stage, int micro_batch);
  [[nodiscard]] std::vector<at::Tensor> state_of(const LocalStage& local) const;
  void write_once(const LocalStage& local, std::vector<at::Tensor>& state);
  [[nodiscard]] std::vector<at::Tensor> take_inputs(const LocalStage& local, MicroBatch& batch);
  [[nodiscard]] std::shared_ptr<const DrawKey> draw_key(int stage, int micro_batch) const;
  [[nodiscard]] std::shared_ptr<WholeBatch> whole_batch(int stage, int micro_batch) const;
  [[nodiscard]] double scalar_weight(ir::ValueId value, const MicroBatch& batch) const;

  std::shared_ptr<const RankPart> part_;
  std::shared_ptr<const Orders> orders_;
  int64_t number_;
  bool with_backward_;
  double loss_seed_;
  Summing summing_ = Summing::in_program;
  std::shared_ptr<KeptGradients> kept_;
  bool finished_ = false;     ///< the gradients are given away, or there are none
  bool keeps_graph_ = false;  ///< the backward that runs, or ran last, may be repeated
  bool unused_ = false;       ///< the gradients are there, and nobody has asked for them
  DrawSteps draw_steps_;      ///< as they were at the forward
  Recorder recorder_;

  std::vector<at::Tensor> inputs_;      ///< [graph input]; until forward ends
  std::vector<at::Tensor> parameters_;  ///< aliases, whose `.grad` is the pending gradient
  std::vector<at::Tensor> buffers_;
  /// [buffer] and [parameter] that a call writes once: as it was before.
  std::vector<at::Tensor> found_buffers_;
  std::vector<at::Tensor> found_parameters_;
  /// [reduction]: until it is done; null where this rank takes no part. Empty unless `in_program`.
  std::vector<std::unique_ptr<GradientSum>> sums_;

  std::vector<std::vector<MicroBatch>> batches_;               ///< [stage][k]
  std::vector<std::vector<std::vector<at::Tensor>>> updated_;  ///< [stage][k]: running statistics

  std::vector<at::Tensor> scalars_;     ///< [scalar output]: sums so far, in float64 or complex128
  std::vector<Assembly> own_outputs_;   ///< [output value]: this rank's rows
  std::vector<at::Tensor> outputs_;     ///< [graph output]
  std::vector<at::Tensor> user_grads_;  ///< [output value]: of the loss of all ranks
  std::vector<Assembly> input_grads_;   ///< [graph input]
};

}  // namespace rannc::runtime
