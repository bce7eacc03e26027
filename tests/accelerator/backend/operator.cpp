#include "backend/operator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/generator.h"
#include "backend/launch.h"
#include "backend/storage.h"

namespace rannc::standin {
namespace {

using c10::IValue;
using torch::jit::Stack;

/// `value` with `function` of each of its tensors.
template <typename Function>
IValue with_tensors(const IValue& value, const Function& function) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? IValue(function(value.toTensor())) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? function(tensor) : tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      list.push_back(tensor && tensor->defined() ? std::optional(function(*tensor)) : tensor);
    }
    return list;
  }
  return value;
}

template <typename Function>
void for_each_tensor(const IValue& value, const Function& function) {
  (void)with_tensors(value, [&](const at::Tensor& tensor) {
    function(tensor);
    return tensor;
  });
}

/// The meta kernel of a normalisation says that statistics of numbers of 16 bits have 32, as on
/// CUDA. The CPU's backward takes them as its forward has made them: where the parameters have 16
/// bits, too, so have these.
void shorten_statistics(const c10::FunctionSchema& schema, Stack& stack) {
  if (schema.name() != "aten::native_layer_norm_backward" &&
      schema.name() != "aten::native_batch_norm_backward") {
    return;
  }
  const auto named = [&](const char* name) -> IValue* {
    const std::optional<int> index = schema.argumentIndexWithName(name);
    if (!index || !stack[static_cast<size_t>(*index)].isTensor()) return nullptr;
    return &stack[static_cast<size_t>(*index)];
  };
  const at::ScalarType dtype = named("input")->toTensor().scalar_type();
  for (const char* parameter : {"weight", "bias", "running_mean"}) {
    const IValue* given = named(parameter);
    if (given != nullptr && given->toTensor().scalar_type() != dtype) return;
  }
  for (const char* statistic : {"mean", "rstd", "save_mean", "save_invstd"}) {
    if (IValue* given = named(statistic); given != nullptr) *given = given->toTensor().to(dtype);
  }
}

/// Torch functions and default devices of the user are not for what a kernel's meta function makes.
class NoTorchFunctions {
 public:
  NoTorchFunctions() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunctions() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }
  NoTorchFunctions(const NoTorchFunctions&) = delete;
  NoTorchFunctions& operator=(const NoTorchFunctions&) = delete;

 private:
  const at::impl::TorchFunctionDisabledState before_ =
      at::impl::PythonTorchFunctionTLS::get_disabled_state();
};

/// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        name_(op.schema().name()),
        stack_(stack),
        arguments_(stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()),
                   stack->end()),
        device_(find_device()) {
    torch::jit::drop(*stack_, arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i) arguments_[i] = with_host_values(i);
  }

  void run() {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const c10::DeviceGuard guard(
        c10::Device(kType, static_cast<c10::DeviceIndex>(device_.index())));
    if (needs_values()) {
      run_and_wait();
    } else {
      run_late();
    }
  }

 private:
  [[nodiscard]] bool takes_host_indices() const {
    return name_ == "aten::index" || name_.starts_with("aten::index_put") ||
           name_ == "aten::_index_put_impl_";
  }

  // As CUDA's: all tensors on one device, but numbers may be on the host.
  Device& find_device() const {
    std::optional<c10::Device> found;
    for (const IValue& argument : arguments_) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (tensor.device().type() != kType) return;
        TORCH_CHECK(!found || *found == tensor.device(),
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, ",
                    *found, " and ", tensor.device(), "! (", name_, ")");
        found = tensor.device();
      });
    }
    for (const IValue& argument : arguments_) {
      if (!found && argument.isDevice() && argument.toDevice().type() == kType) {
        found = argument.toDevice();
      }
    }
    const int index = found && found->has_index() ? found->index() : current_device();
    return Accelerator::get().use(index);
  }

  /// Tensors of the host have their values of now, whatever the host does with them later.
  IValue with_host_values(size_t index) const {
    const c10::Argument& described = op_.schema().arguments()[index];
    const bool written = described.alias_info() != nullptr && described.alias_info()->isWrite();
    const bool indices = takes_host_indices() && described.name() == "indices";
    return with_tensors(arguments_[index], [&](const at::Tensor& tensor) {
      if (tensor.device().type() == kType) return tensor;
      TORCH_CHECK(tensor.is_cpu() && !written && (tensor.dim() == 0 || indices),
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "standin:",
                  device_.index(), " and ", tensor.device(), "! (", name_, ")");
      return copy_of(tensor);
    });
  }

  static at::Tensor copy_of(const at::Tensor& tensor) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor copy = tensor.clone();
    keep_wrapped(tensor, copy);
    return copy;
  }

  [[nodiscard]] const IValue* argument(const char* name) const {
    const std::optional<int> index = op_.schema().argumentIndexWithName(name);
    return index ? &arguments_[static_cast<size_t>(*index)] : nullptr;
  }

  [[nodiscard]] bool selects_by_mask() const {
    const IValue* indices = takes_host_indices() ? argument("indices") : nullptr;
    if (indices == nullptr) return false;
    bool mask = false;
    for_each_tensor(*indices, [&](const at::Tensor& tensor) {
      mask |= tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
    });
    const IValue* values = argument("values");
    // One number is written where the mask says, without asking where that is.
    return mask && !(values != nullptr && values->toTensor().numel() == 1);
  }

  [[nodiscard]] bool needs_values() const {
    if (takes_host_indices()) return selects_by_mask();
    if (const IValue* size = argument("output_size"); size != nullptr && !size->isNone()) {
      return false;
    }
    return op_.hasTag(at::Tag::dynamic_output_shape) ||
           op_.hasTag(at::Tag::data_dependent_output) || !has_meta_kernel();
  }

  [[nodiscard]] bool has_meta_kernel() const {
    using Key = c10::DispatchKey;
    for (const Key key :
         {Key::Meta, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional,
          Key::CompositeImplicitAutograd}) {
      if (op_.hasKernelForDispatchKey(key)) return true;
    }
    return false;
  }

  Stack for_meta() {
    Stack stack;
    for (const IValue& argument : arguments_) {
      if (argument.isDevice()) {
        stack.emplace_back(c10::Device(c10::DeviceType::Meta));
      } else if (argument.isGenerator()) {
        stack.emplace_back();
      } else {
        stack.push_back(with_tensors(argument, [this](const at::Tensor& tensor) {
          if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
          return meta_of(tensor);
        }));
      }
    }
    return stack;
  }

  at::Tensor meta_of(const at::Tensor& tensor) {
    for (const auto& [known, meta] : metas_) {
      if (known.is_same(tensor)) return meta;
    }
    at::Tensor meta(
        at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
    keep_wrapped(tensor, meta);
    metas_.emplace_back(tensor, meta);
    return meta;
  }

  Stack for_kernel(int64_t drawn) {
    KernelTensors tensors(device_);
    Stack stack;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const IValue& argument = arguments_[i];
      if (argument.isDevice()) {
        stack.emplace_back(c10::Device(c10::DeviceType::CPU));
      } else if (draws(i)) {
        const auto given = argument.isNone() ? std::nullopt : std::optional(argument.toGenerator());
        stack.emplace_back(take_numbers(given, device_.index(), drawn));
      } else {
        stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
          // Not what a meta kernel in Python may have seen: a stream's thread would wait for the
          // interpreter's lock to let it go, which no kernel of a GPU does.
          if (tensor.is_cpu()) return copy_of(tensor);
          at::Tensor alias = tensors.of(tensor);
          aliases_.emplace_back(tensor, alias);
          return alias;
        }));
      }
    }
    return stack;
  }

  [[nodiscard]] bool draws(size_t index) const {
    if (!op_.hasTag(at::Tag::nondeterministic_seeded)) return false;
    const auto type = op_.schema().arguments()[index].type();
    return type->str() == "Generator?" || type->str() == "Generator";
  }

  void run_late() {
    Stack results = for_meta();
    {
      const NoTorchFunctions none;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &results);
    }
    int64_t most = 0;  // numbers that may be drawn
    for (const auto& [tensor, meta] : metas_) {
      if (tensor.sizes() != meta.sizes() || tensor.strides() != meta.strides()) {
        resize(tensor, meta.sizes(), meta.strides());
      }
      most = std::max(most, meta.numel());
    }
    std::vector<std::vector<at::Tensor>> made;  // per result, the new tensors
    for (IValue& result : results) {
      made.emplace_back();
      result = with_tensors(result, [&](const at::Tensor& meta) {
        for (const auto& [tensor, of] : metas_) {
          if (of.is_same(meta)) {
            made.back().emplace_back();
            return tensor;
          }
        }
        made.back().push_back(empty(device_, meta.sizes(), meta.strides(), meta.scalar_type()));
        most = std::max(most, meta.numel());
        return made.back().back();
      });
    }
    Stack kernel = for_kernel(most);
    KernelTensors tensors(device_);
    for (auto& list : made) {
      for (at::Tensor& tensor : list) {
        if (tensor.defined()) tensor = tensors.of(tensor);
      }
    }
    launch(device_, name_,
           [op = op_, name = name_, stack = std::move(kernel), made = std::move(made)]() mutable {
             shorten_statistics(op.schema(), stack);
             op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
             for (size_t i = 0; i < stack.size(); ++i) {
               size_t at = 0;
               for_each_tensor(stack[i], [&](const at::Tensor& value) {
                 const at::Tensor& target = made.at(i).at(at++);
                 if (!target.defined()) return;
                 // In evaluation the CPU's leaves out the statistics, which nobody reads.
                 if (value.numel() == 0 && name.find("batch_norm") != std::string::npos) return;
                 TORCH_CHECK(target.sizes() == value.sizes(), "the meta kernel said ",
                             target.sizes(), ", the CPU's made ", value.sizes());
                 target.copy_(value);
               });
             }
           });
    stack_->insert(stack_->end(), results.begin(), results.end());
  }

  void run_and_wait() {
    auto values = std::make_shared<Stack>(for_kernel(/*drawn=*/0));
    launch_and_wait(device_, name_, [op = op_, values] {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), values.get());
    });
    for (const IValue& value : *values) {
      stack_->push_back(with_tensors(value, [this](const at::Tensor& result) {
        for (const auto& [tensor, alias] : aliases_) {
          if (alias.is_same(result)) return tensor;
        }
        at::Tensor made = empty(device_, result.sizes(), result.strides(), result.scalar_type());
        KernelTensors tensors(device_);
        launch(device_, name_, [target = tensors.of(made), result] { target.copy_(result); });
        return made;
      }));
    }
  }

  const c10::OperatorHandle& op_;
  const std::string name_;
  Stack* stack_;
  std::vector<IValue> arguments_;
  Device& device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> metas_;    // with the meta tensor of each
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;  // with what the kernel sees of each
};

}  // namespace

void issue(const c10::OperatorHandle& op, Stack* stack) { Call(op, stack).run(); }

c10::OperatorHandle operator_named(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

}  // namespace rannc::standin
