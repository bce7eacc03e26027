#include "runtime/stage/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <tuple>

#include "rannc/util/error.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Arguments of aten::batch_norm.
constexpr size_t kWeight = 1, kBias = 2, kRunningMean = 3, kRunningVar = 4;
constexpr size_t kTensors = 5, kMomentum = 6, kEps = 7;

constexpr int64_t forward_message(uint32_t node) { return 2 * int64_t{node}; }
constexpr int64_t backward_message(uint32_t node) { return 2 * int64_t{node} + 1; }
constexpr uint32_t node_of(int64_t message) { return static_cast<uint32_t>(message / 2); }

/// What a node's backward needs beside tensors that autograd keeps.
struct Pass : torch::CustomClassHolder {
  uint32_t node = 0;
  double eps = 0;
  BatchStatistics statistics;
  std::shared_ptr<const WholeBatch> batch;
};

/// 16 bits are too few for statistics.
at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

std::optional<at::Tensor> like(const std::optional<at::Tensor>& tensor, const at::Tensor& other) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  return tensor->to(other.options());
}

/// (input - mean) / sqrt(variance + eps) * weight + bias, by torch's kernel for inference.
at::Tensor normalised(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, const Pass& pass) {
  return std::get<0>(at::native_batch_norm(
      input, like(weight, input), like(bias, input), pass.statistics.mean.to(input.options()),
      pass.statistics.variance.to(input.options()), /*training=*/false, /*momentum=*/0, pass.eps));
}

struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias,
                            const c10::intrusive_ptr<Pass>& pass) {
    context->save_for_backward({input, weight.value_or(at::Tensor())});
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->saved_data["has_bias"] = bias.has_value();
    return normalised(widened(input), weight, bias, *pass).to(input.scalar_type());
  }

  /// With g the gradient of the output, x^ the normalised input and N values in a channel:
  /// weight / sqrt(variance + eps) * (g - sum(g) / N - x^ * sum(g x^) / N), sums over all replicas.
  /// Torch's kernel for inference gives the first term and this replica's sums; the other two are
  /// x^ times one number plus another, which is a normalisation again.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto holder = context->saved_data["pass"].toCapsule();
    const Pass& pass = static_cast<const Pass&>(*holder);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor input = widened(saved[0]);
    const auto weight = saved[1].defined() ? std::optional(saved[1]) : std::nullopt;
    const bool wants_input = context->needs_input_grad(0);
    auto [input_grad, dots, sums] = at::native_batch_norm_backward(
        grads[0].to(input.options()), input, like(weight, input),
        pass.statistics.mean.to(input.options()), pass.statistics.variance.to(input.options()), {},
        {}, /*train=*/false, pass.eps, {wants_input, true, true});
    if (wants_input) {
      const at::Tensor mine = at::cat({sums, dots}).to(at::kDouble);
      const at::Tensor means =
          pass.batch->gather(mine, backward_message(pass.node)).sum(0).div_(pass.statistics.count);
      at::Tensor factor = pass.statistics.variance.add(pass.eps).rsqrt_().neg_();
      if (weight) factor.mul_(weight->to(at::kDouble));
      const int64_t channels = sums.numel();
      input_grad.add_(normalised(input, means.narrow(0, channels, channels).mul(factor),
                                 means.narrow(0, 0, channels).mul(factor), pass));
      input_grad = input_grad.to(saved[0].scalar_type());
    }
    return {wants_input ? input_grad : at::Tensor(),
            weight ? dots.to(weight->scalar_type()) : at::Tensor(),
            context->saved_data["has_bias"].toBool() ? sums : at::Tensor(), at::Tensor()};
  }
};

/// Chan, Golub and LeVeque 1979: from the count, mean and squared deviations of each part.
BatchStatistics statistics_of(const at::Tensor& input, const WholeBatch& batch, int64_t message) {
  const at::NoGradGuard no_grad;
  const int64_t channels = input.size(1);
  const auto count = static_cast<double>(input.numel() / channels);
  const auto [mean, variance] = at::batch_norm_update_stats(widened(input), {}, {}, 0);
  const at::Tensor parts =
      batch.gather(at::cat({at::full({1}, count, mean.options().dtype(at::kDouble)),
                            mean.to(at::kDouble), variance.to(at::kDouble).mul(count)}),
                   message);
  const at::Tensor counts = parts.narrow(1, 0, 1);
  const at::Tensor means = parts.narrow(1, 1, channels);
  BatchStatistics whole;
  whole.count = counts.sum();
  whole.mean = means.mul(counts).sum(0).div_(whole.count);
  whole.variance = means.sub(whole.mean).square_().mul_(counts);
  whole.variance = whole.variance.add_(parts.narrow(1, 1 + channels, channels)).sum(0);
  whole.variance.div_(whole.count);
  return whole;
}

at::Tensor rows_of_ranks(int64_t numbers, const at::TensorOptions& options, size_t ranks) {
  return at::zeros({static_cast<int64_t>(ranks), numbers}, options);
}

comm::Handle start_gather(const at::Tensor& all, comm::Communicator& comm, comm::Stream& stream,
                          const std::vector<int>& ranks, int stage, std::optional<int64_t> tag) {
  return comm.start_all_gather(memory_of(all, stream), comm::Element::float64, ranks,
                               {.what = "batch statistics", .stage = stage},
                               std::make_shared<at::Tensor>(all), tag);
}

}  // namespace

WholeBatch::WholeBatch(std::shared_ptr<comm::Communicator> comm,
                       std::shared_ptr<comm::Stream> stream, std::vector<int> ranks,
                       int64_t first_tag, int stage)
    : comm_(std::move(comm)),
      stream_(std::move(stream)),
      ranks_(std::move(ranks)),
      first_tag_(first_tag),
      stage_(stage) {}

at::Tensor WholeBatch::gather(const at::Tensor& mine, int64_t message) const {
  return mine.is_cpu() ? gather_on_host(mine, message) : gather_on_device(mine, message);
}

at::Tensor WholeBatch::gather_on_host(const at::Tensor& mine, int64_t message) const {
  const at::Tensor sent = mine.contiguous();
  at::Tensor all = at::empty({static_cast<int64_t>(ranks_.size()), sent.numel()}, sent.options());
  comm::all_gather_into(*comm_, sent.const_data_ptr(), static_cast<int64_t>(sent.nbytes()),
                        all.mutable_data_ptr(), ranks_, first_tag_ + message,
                        {.what = "batch statistics", .stage = stage_});
  return all;
}

/// Whoever computes waits for messages only, and under NCCL not at all.
at::Tensor WholeBatch::gather_on_device(const at::Tensor& mine, int64_t message) const {
  const bool in_order = comm_->is_in_order();
  if (in_order) reach_statistics(node_of(message));
  const std::vector<int>& ranks = in_order ? all_replicas : ranks_;
  const at::Tensor all = rows_of_ranks(mine.numel(), mine.options(), ranks.size());
  all.select(0, std::ranges::find(ranks, comm_->rank()) - ranks.begin()).copy_(mine);
  stream_->wait(*start_gather(all, *comm_, *stream_, ranks, stage_, first_tag_ + message));
  return all;
}

int64_t statistics_size(int64_t channels, bool forward) {
  return 2 * channels + (forward ? 1 : 0);  // count, means and squared deviations; or two sums
}

int64_t channels_of(const ir::Graph& graph, ir::NodeId node) {
  return graph[graph.operands(node).front()].dims[1].fixed;
}

void join_statistics(int64_t channels, bool forward, c10::Device device, comm::Communicator& comm,
                     comm::Stream& stream, const std::vector<int>& replicas, int stage) {
  const at::Tensor zeros =
      rows_of_ranks(statistics_size(channels, forward),
                    at::TensorOptions().dtype(at::kDouble).device(device), replicas.size());
  (void)start_gather(zeros, comm, stream, replicas, stage, /*tag=*/{});
}

SyncBatchNorm::SyncBatchNorm(const ir::Graph& graph, ir::NodeId node) : node_(node.index) {
  const std::vector<ir::Argument>& inputs = graph[node].inputs;
  RANNC_CHECK(inputs.size() > kEps, graph[node].name);
  size_t next = 0;
  for (size_t argument = 0; argument < kTensors; ++argument) {
    const bool is_tensor = std::holds_alternative<ir::ValueId>(inputs[argument]);
    places_.push_back(is_tensor ? std::optional(next++) : std::nullopt);
  }
  const auto number = [&](size_t argument) {
    if (const auto* real = std::get_if<double>(&inputs[argument])) return *real;
    return static_cast<double>(std::get<ir::AffineInt>(inputs[argument]).fixed);
  };
  momentum_ = number(kMomentum);
  eps_ = number(kEps);
}

std::optional<at::Tensor> SyncBatchNorm::operand(size_t argument,
                                                 std::span<at::Tensor> operands) const {
  return places_[argument] ? std::optional(operands[*places_[argument]]) : std::nullopt;
}

void SyncBatchNorm::call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results,
                         const std::shared_ptr<WholeBatch>& batch) const {
  const at::Tensor input = operands[0];
  auto known = batch->statistics.find(node_);
  if (known == batch->statistics.end()) {
    const BatchStatistics found = statistics_of(input, *batch, forward_message(node_));
    known = batch->statistics.emplace(node_, found).first;
  }
  update_running(operands, known->second);
  auto pass = c10::make_intrusive<Pass>();
  pass->node = node_;
  pass->eps = eps_;
  pass->statistics = known->second;
  pass->batch = batch;
  results.clear();
  results.push_back(
      Normalise::apply(input, operand(kWeight, operands), operand(kBias, operands), pass));
}

void SyncBatchNorm::update_running(std::span<at::Tensor> operands,
                                   const BatchStatistics& statistics) const {
  const at::NoGradGuard no_grad;
  const auto update = [&](size_t argument, const at::Tensor& statistic) {
    const std::optional<at::Tensor> buffer = operand(argument, operands);
    if (!buffer) return;
    // Without autograd's version counter: batch_norm itself does not count its updates either.
    const at::Tensor target = buffer->variable_data();
    target.copy_(target.to(at::kDouble).mul(1 - momentum_).add_(statistic, momentum_));
  };
  update(kRunningMean, statistics.mean);
  update(kRunningVar,
         statistics.variance.mul(statistics.count).div(statistics.count.sub(1)));  // unbiased
}

}  // namespace rannc::runtime
