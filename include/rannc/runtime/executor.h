#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"
#include "rannc/ir/shard.h"
#include "rannc/ops/objects.h"
#include "rannc/plan/buckets.h"
#include "rannc/plan/outputs.h"
#include "rannc/plan/plan.h"
#include "rannc/plan/program.h"
#include "rannc/runtime/draws.h"
#include "rannc/runtime/kept_gradients.h"
#include "rannc/runtime/timeline.h"

namespace rannc::runtime {

/// What a backward is for.
struct BackwardOf {
  static constexpr size_t kMostOutputs = 62;

  /// Bit i: some rank has a gradient of output i; all further ones are taken to have one. None
  /// flows from what nobody has a gradient of: zeros would be a `.grad` of parameters that have no
  /// part in the loss.
  int64_t outputs = -1;
  /// [parameter]: whether it is added to `.grad`, which torch.autograd.grad() of others does not;
  /// what is kept of others stays. Empty: all.
  std::vector<bool> parameters;

  [[nodiscard]] bool accumulates(size_t parameter) const {
    return parameters.empty() || parameters[parameter];
  }
};

/// Everything of one forward pass that its backward needs. Calls are independent of each other:
/// two forwards before a backward are right.
class Call {
 public:
  virtual ~Call() = default;

  /// graph.outputs: own rows of batch outputs, the global value of scalars. Detached. Undefined
  /// where the Program does not return them. Empty after backward(), so that a kept call keeps no
  /// memory.
  [[nodiscard]] virtual const std::vector<at::Tensor>& outputs() const = 0;

  /// Runs the backward part of the Program. `output_grads` as outputs(), undefined where none;
  /// they are the gradients of this rank's loss. Scalar outputs (kind mean or sum): the gradient
  /// of the one global value, equal on all ranks. Others count with weight local / global rows,
  /// or 1 with Options::outside_sum.
  /// Returns one gradient per parameter (Executor::parameter_names, summed over replicas and tied
  /// stages; undefined where nothing flows) and then one per argument.
  ///
  /// With `keep_graph` it may be called again. Under gpipe it communicates: every rank calls it, in
  /// the same order and with the same `keep_graph`, else CommError. Under the other schedules the
  /// gradients of the loss are there already, and this multiplies them by the one that comes in:
  /// with `keep_graph` into new tensors; without, they are given away.
  [[nodiscard]] virtual std::vector<at::Tensor> backward(std::vector<at::Tensor> output_grads,
                                                         bool keep_graph, BackwardOf of = {}) = 0;

  /// Whether backward() would communicate now, so that every rank calls it: always under gpipe;
  /// else where kept gradients are summed with this call's.
  [[nodiscard]] virtual bool communicates() const = 0;
};

class Group;

struct Options {
  /// What a training call of a model that returns its loss sends.
  plan::Outputs outputs = plan::Outputs::loss;
  /// What has to be known of the whole batch first: ir::HoistedSums::preludes, when the graph is
  /// its `main`. Arguments of a call are then those of the preludes.
  std::vector<ir::Graph> preludes;
  /// The loss of all ranks is the sum of what the ranks compute from their outputs, not the mean
  /// over rows.
  bool outside_sum = false;
  /// Random numbers depend on the seed, the step at the time of the forward, the node, and the
  /// sample: the same under every plan. Null: ranks draw from their generators, each differently.
  std::shared_ptr<const DrawSteps> draws;
  /// The order in which the device works.
  std::shared_ptr<comm::Stream> stream = comm::make_host_stream();
  /// Shared by the executors of a model; null: one of its own.
  std::shared_ptr<KeptGradients> kept;
  /// Gradients are summed in buckets of this size; equal on all ranks.
  int64_t bucket_bytes = plan::kBucketBytes;
  /// Of parameters that are held by other ranks than those whose stages use them: such a rank takes
  /// part in the sum of their gradients. Equal on all ranks.
  plan::ParameterHolders holders;
  /// The names of the parameters of each bucket that has shards, in its order: others are summed
  /// for all their ranks. None: those of the plan.
  std::optional<std::vector<std::vector<std::string>>> shards;
  /// Logs what enters and leaves the stages, on every rank.
  bool show_values = false;
  /// 16-bit gradients are summed over ranks in float32, also by NCCL, which else sums them as they
  /// are. Equal on all ranks.
  bool float32_sums = false;
  /// How groups hold the state of the model, where that is settled. Equal on all ranks.
  ir::Layouts held = {};
  /// Set by the executor: the ranks that compute this rank's shares with it; null: none.
  std::shared_ptr<const Group> group = {};
};

/// Runs one rank's part of a plan, on batches of any size.
class Executor {
 public:
  /// Every rank constructs it with equal arguments.
  Executor(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
           std::shared_ptr<comm::Communicator> comm, c10::Device device,
           const Options& options = {});
  ~Executor();

  /// Parameters and buffers that this rank's stages use, and parameters of Options::holders, in
  /// graph order: what forward() takes.
  [[nodiscard]] const std::vector<std::string>& parameter_names() const;
  [[nodiscard]] const std::vector<std::string>& buffer_names() const;
  /// Of these, the ones of which this rank takes a part. One that several stages use is cut alike.
  [[nodiscard]] const std::vector<ir::Part>& parts() const;

  /// One iteration's forward part on this rank's local batch. `inputs` as graph.inputs, without
  /// those that the preludes give.
  /// `local_rows[rank]`, equal on all ranks. `with_backward` false: forward only, nothing is kept.
  /// `no_sync`: the backward adds the parameters' gradients to what is kept, unsummed, and returns
  /// none of them; the next backward of a call without it sums them with its own. What is kept for
  /// parameters that this call does not have is left for KeptGradients::sum(), which is called
  /// then.
  /// `loss_seed`: where the backward that runs inside a forward starts from; float16 gradients are
  /// lost below 6e-8. Call::backward divides by it. A positive power of two, the same on all ranks.
  /// Every rank calls it; the GIL is not held.
  [[nodiscard]] std::shared_ptr<Call> forward(const std::vector<at::Tensor>& inputs,
                                              const std::vector<at::Tensor>& parameters,
                                              const std::vector<at::Tensor>& buffers,
                                              const std::vector<int64_t>& local_rows,
                                              bool with_backward, bool no_sync = false,
                                              double loss_seed = 1);

  /// What all training calls so far took together, and each action of the one that began last.
  [[nodiscard]] const Times& times() const;
  [[nodiscard]] const std::vector<Span>& timeline() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the calls that are still alive
};

}  // namespace rannc::runtime
