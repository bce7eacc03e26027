#include "backend/autocast.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <set>
#include <string>

#include "machine/accelerator.h"

// Of ATen/autocast_mode.h, which includes all operators.
namespace at::autocast {
TORCH_API Tensor cached_cast(at::ScalarType to, const Tensor& tensor, c10::DeviceType device);
TORCH_API at::ScalarType get_autocast_dtype(c10::DeviceType device);
}  // namespace at::autocast

namespace rannc::standin {
namespace {

// Policies of the CPU's list (ATen/autocast_mode.cpp); what is in neither set computes in float32.
const std::set<std::string> kLowPrecision = {"conv1d",
                                             "conv2d",
                                             "conv3d",
                                             "bmm",
                                             "mm",
                                             "linalg_vecdot",
                                             "baddbmm",
                                             "addmm",
                                             "_addmm_activation",
                                             "addbmm",
                                             "linear",
                                             "_convolution",
                                             "matmul",
                                             "conv_tbc",
                                             "mkldnn_rnn_layer",
                                             "conv_transpose1d",
                                             "conv_transpose2d",
                                             "conv_transpose3d",
                                             "prelu",
                                             "scaled_dot_product_attention",
                                             "_native_multi_head_attention"};
const std::set<std::string> kPromoted = {"stack", "cat", "index_copy"};

bool castable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType && tensor.is_floating_point() &&
         tensor.scalar_type() != at::kDouble;
}

at::ScalarType widest(at::ScalarType so_far, const c10::IValue& value) {
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) so_far = widest(so_far, tensor);
  } else if (value.isTensor() && castable(value.toTensor()) &&
             value.toTensor().scalar_type() == at::kFloat) {
    so_far = at::kFloat;
  }
  return so_far;
}

c10::IValue cast_value(const c10::IValue& value, at::ScalarType to) {
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(at::autocast::cached_cast(to, tensor, kType));
    }
    return list;
  }
  if (!value.isTensor() || !castable(value.toTensor())) return value;
  return at::autocast::cached_cast(to, value.toTensor(), kType);
}

}  // namespace

void cast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  const std::string name = op.schema().name().substr(std::string("aten::").size());
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  at::ScalarType to = at::kFloat;
  if (kLowPrecision.contains(name)) {
    to = at::autocast::get_autocast_dtype(kType);
  } else if (kPromoted.contains(name)) {
    to = at::autocast::get_autocast_dtype(kType);
    for (auto value = first; value != stack->end(); ++value) to = widest(to, *value);
  }
  for (auto value = first; value != stack->end(); ++value) *value = cast_value(*value, to);
  op.callBoxed(stack);
}

}  // namespace rannc::standin
