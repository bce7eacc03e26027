// What torch does otherwise on a device that it does not know: convolution, attention, dropout.
// Here they are the CPU's, so that numbers can be compared to the bit.
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

#include "backend/by_hand.h"
#include "backend/generator.h"
#include "backend/launch.h"
#include "backend/operator.h"

namespace rannc::standin {
namespace {

using c10::IValue;
using torch::jit::Stack;
using OptionalTensor = std::optional<at::Tensor>;

void convolution(const c10::OperatorHandle& /*op*/, Stack* stack) {
  issue(operator_named("aten::convolution"), stack);
}

// Like convolution_backward, but for the sizes of the bias, which come fourth there.
void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const at::Tensor& weight = first[2].toTensor();
  const bool transposed = first[6].toBool();
  const int64_t outputs = transposed ? weight.size(1) * first[8].toInt() : weight.size(0);
  stack->insert(first + 3, IValue(std::vector<int64_t>{outputs}));
  issue(operator_named("aten::convolution_backward"), stack);
}

// Enumerators of sdp::SDPBackend, whose header comes with all of CUDA's choices.
constexpr int64_t kMath = 0;
constexpr int64_t kFlash = 1;
constexpr int64_t kOverrideable = 4;

int64_t attention_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const OptionalTensor& mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  // Without memory, as the choice depends on shapes: these may be fake tensors.
  const auto seen = [](const at::Tensor& tensor) {
    c10::Storage none(c10::Storage::use_byte_size_t(), 0,
                      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)),
                      /*allocator=*/nullptr, /*resizable=*/false);
    auto shape = at::detail::make_tensor<c10::TensorImpl>(
        std::move(none), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    shape.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    if (tensor.requires_grad()) shape.set_requires_grad(true);
    return shape;
  };
  const OptionalTensor seen_mask =
      mask && mask->defined() ? OptionalTensor(seen(*mask)) : std::nullopt;
  const int64_t choice = at::native::_fused_sdp_choice_cpp(
      seen(query), seen(key), seen(value), seen_mask, dropout_p, is_causal, scale, enable_gqa);
  return choice == kFlash ? kOverrideable : kMath;
}

using Attention = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
                             c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

Attention attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const OptionalTensor& mask, double dropout_p, bool is_causal,
                    bool /*return_debug_mask*/, std::optional<double> scale) {
  Stack stack{query, key, value, dropout_p, is_causal, mask, scale};
  issue(operator_named("aten::_scaled_dot_product_flash_attention_for_cpu"), &stack);
  return {stack[0].toTensor(), stack[1].toTensor(), {}, {}, query.size(2), key.size(2), {}, {}, {}};
}

using AttentionGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

AttentionGradients attention_backward(const at::Tensor& grad_out, const at::Tensor& query,
                                      const at::Tensor& key, const at::Tensor& value,
                                      const at::Tensor& mask, std::array<bool, 4> /*wanted*/,
                                      const at::Tensor& out, const at::Tensor& logsumexp,
                                      const at::Tensor& /*cum_seq_q*/,
                                      const at::Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/,
                                      c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
                                      const at::Tensor& /*seed*/, const at::Tensor& /*offset*/,
                                      std::optional<double> scale) {
  const OptionalTensor given = mask.defined() ? OptionalTensor(mask) : std::nullopt;
  Stack stack{grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, given, scale};
  issue(operator_named("aten::_scaled_dot_product_flash_attention_for_cpu_backward"), &stack);
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), {}};
}

// Has no meta kernel.
std::tuple<at::Tensor, at::Tensor> batch_norm_update_stats(const at::Tensor& input,
                                                           const OptionalTensor& mean,
                                                           const OptionalTensor& variance,
                                                           double momentum) {
  Device& device = Accelerator::get().use(input.device().index());
  const at::Tensor made_mean = empty(device, {input.size(1)}, {1}, input.scalar_type());
  const at::Tensor made_variance = empty(device, {input.size(1)}, {1}, input.scalar_type());
  KernelTensors tensors(device);
  const auto seen = [&tensors](const OptionalTensor& tensor) {
    return tensor && tensor->defined() ? IValue(tensors.of(*tensor)) : IValue();
  };
  launch(device, "aten::batch_norm_update_stats",
         [stack = Stack{tensors.of(input), seen(mean), seen(variance), momentum},
          to_mean = tensors.of(made_mean), to_variance = tensors.of(made_variance)]() mutable {
           operator_named("aten::batch_norm_update_stats")
               .redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
           to_mean.copy_(stack[0].toTensor());
           to_variance.copy_(stack[1].toTensor());
         });
  return {made_mean, made_variance};
}

// The CPU's, but its kernel draws from the host's default generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  Device& device = Accelerator::get().use(input.device().index());
  at::Tensor output = empty(device, input.sizes(), input.strides(), input.scalar_type());
  at::Tensor mask = empty(device, input.sizes(), input.strides(), at::kBool);
  KernelTensors tensors(device);
  const bool draws = train.value_or(true);
  launch(device, "aten::native_dropout",
         [from = tensors.of(input), to = tensors.of(output), kept = tensors.of(mask), p, draws,
          generator =
              draws ? take_numbers(std::nullopt, device.index(), input.numel()) : at::Generator()] {
           if (!draws) {
             kept.fill_(true);
             to.copy_(from);
             return;
           }
           kept.bernoulli_(1 - p, generator);
           to.copy_(from).mul_(kept).mul_(p == 1 ? 0.0 : 1 / (1 - p));
         });
  return {output, mask};
}

}  // namespace

std::vector<ByHand> layers() {
  using c10::KernelFunction;
  return {
      {"convolution_overrideable", KernelFunction::makeFromBoxedFunction<&convolution>()},
      {"convolution_backward_overrideable",
       KernelFunction::makeFromBoxedFunction<&convolution_backward>()},
      {"_fused_sdp_choice", KernelFunction::makeFromUnboxedRuntimeFunction(&attention_choice)},
      {"_scaled_dot_product_fused_attention_overrideable",
       KernelFunction::makeFromUnboxedRuntimeFunction(&attention)},
      {"_scaled_dot_product_fused_attention_overrideable_backward",
       KernelFunction::makeFromUnboxedRuntimeFunction(&attention_backward)},
      {"batch_norm_update_stats",
       KernelFunction::makeFromUnboxedRuntimeFunction(&batch_norm_update_stats)},
      {"native_dropout", KernelFunction::makeFromUnboxedRuntimeFunction(&native_dropout)},
  };
}

}  // namespace rannc::standin

namespace at::native {
// What scaled_dot_product_attention asks, beside the operator.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &rannc::standin::attention_choice)
}  // namespace at::native
