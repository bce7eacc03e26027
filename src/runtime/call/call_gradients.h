#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "rannc/plan/plan.h"
#include "rannc/plan/program.h"
#include "rannc/runtime/executor.h"
#include "rannc/runtime/kept_gradients.h"
#include "runtime/call/gradient_sum.h"
#include "runtime/call/orders.h"
#include "runtime/call/rank_part.h"
#include "runtime/call/recorder.h"
#include "runtime/stage/parameter_gathers.h"

namespace rannc::runtime {

/// The gradients of a call's parameters: autograd adds them up here, they are summed over the ranks
/// that hold a parameter, in buckets, or kept without that, and they are handed over.
///
/// It belongs to the thread that runs the call. Autograd calls back from the thread that runs a
/// backward, while the call waits for that.
class CallGradients {
 public:
  /// `call`: its number. `with_backward` and `no_sync` as in Executor::forward(). `part` and
  /// `orders` must outlive it. `gathers`: [stage], may be null. `completed`: buckets wait for
  /// issue(), and this is called when one is complete; empty: they start by themselves.
  CallGradients(const RankPart& part, const Orders& orders, int64_t call,
                const std::vector<at::Tensor>& parameters,
                const std::vector<std::shared_ptr<ParameterGathers>>& gathers, bool with_backward,
                bool no_sync, std::shared_ptr<KeptGradients> kept, std::function<void()> completed);
  CallGradients(const CallGradients&) = delete;
  CallGradients& operator=(const CallGradients&) = delete;

  /// The parameters to compute with, [RankPart::parameter_names]: their `.grad` is the sum of what
  /// this rank's backwards have given so far. They are new in each call, so that
  /// `parameter.data = ...` is followed.
  [[nodiscard]] const std::vector<at::Tensor>& aliases() const { return aliases_; }

  /// Whether the Program's actions sum the gradients: those of another call are left out.
  [[nodiscard]] bool sums_in_program() const { return summing_ == Summing::in_program; }
  /// Before a backward that repeats an earlier one.
  void prepare_sums();
  /// Around the last backward of a stage on this rank. Gradients that no later one adds to are
  /// complete when it gives them, and their buckets start then.
  void begin_last_backward(int stage);
  void end_last_backward(int stage);
  /// Whether a bucket of the Program has all that this rank adds, and starting it.
  [[nodiscard]] bool is_complete(const plan::Communication& bucket) const;
  void issue(const plan::Communication& bucket);
  /// Waits for the sum: the action reduce_gradients.
  void reduce(size_t reduction);
  /// Whether a sum is under way.
  [[nodiscard]] bool summing() const;

  /// A backward that communicates starts from what was kept before it; if it fails, that is lost.
  void take_kept(const BackwardOf& of);
  void lose_kept();

  /// Takes the gradients of this rank's backwards away: [parameter].
  [[nodiscard]] std::vector<at::Tensor> take();
  /// Those, to be read.
  [[nodiscard]] std::vector<at::Tensor> show() const;

  /// Whether finish() communicates.
  [[nodiscard]] bool sums_at_end() const;
  /// What is left to be done with gradients that were taken, [parameter] and then others: they are
  /// kept (and become undefined), or summed with what was kept before.
  void finish(std::vector<at::Tensor>& gradients, Recorder& recorder, const BackwardOf& of);

  /// Autograd keeps a call as long as the user keeps its loss.
  void forget() { aliases_.clear(); }

 private:
  /// Where the gradients are summed over ranks.
  enum class Summing {
    in_program,  ///< by the actions reduce_gradients
    at_end,      ///< by finish(), with kept ones, where the Program's backward came before
    kept,        ///< not by this call
  };
  /// Where a parameter is summed: Program::reductions, and Reduction::parameters there.
  struct Place {
    size_t reduction = 0;
    size_t position = 0;
  };

  /// Of a parameter that replicas share: who gathers it, and its number there; null: it is whole.
  struct Shared {
    ParameterGathers* gathers = nullptr;
    size_t parameter = 0;
  };

  [[nodiscard]] std::vector<std::optional<Place>> find_places() const;
  [[nodiscard]] std::vector<Shared> find_shared(
      const std::vector<std::shared_ptr<ParameterGathers>>& gathers) const;
  [[nodiscard]] at::Tensor& gradient(size_t parameter) const;
  void make_aliases(const std::vector<at::Tensor>& parameters);
  [[nodiscard]] std::vector<std::unique_ptr<GradientSum>> make_sums(
      const std::vector<at::Tensor>& parameters) const;
  [[nodiscard]] std::vector<plan::Rank> ranks_of(size_t parameter) const;
  void keep(std::vector<at::Tensor>& gradients, const BackwardOf& of);
  void sum_at_end(std::vector<at::Tensor>& gradients, Recorder& recorder, const BackwardOf& of);

  const RankPart& part_;
  const Orders& orders_;
  const int64_t call_;
  const bool with_backward_;
  const std::shared_ptr<KeptGradients> kept_;
  const std::function<void()> completed_;
  Summing summing_ = Summing::in_program;
  bool took_kept_ = false;
  /// [parameter]: none where this rank alone holds it. Empty without a backward.
  std::vector<std::optional<Place>> places_;
  std::vector<at::Tensor> aliases_;
  const std::vector<Shared> shared_;  ///< [parameter]
  /// [reduction]: until it is done; null where this rank takes no part. Empty unless `in_program`.
  std::vector<std::unique_ptr<GradientSum>> sums_;
};

}  // namespace rannc::runtime
