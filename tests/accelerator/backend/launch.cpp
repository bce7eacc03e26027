#include "backend/launch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include <exception>

#include "backend/allocator.h"

namespace rannc::standin {
namespace {

// Sums of many numbers depend on how many threads share them: a kernel has as many as its issuer.
Queue::Work guarded(Device& device, const std::string& name, std::function<void()> kernel) {
  return [&device, name, kernel = std::move(kernel), threads = at::get_num_threads()] {
    if (device.failed()) return;
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    try {
      kernel();
    } catch (const c10::Error& error) {
      device.fail(name + ": " + error.what_without_backtrace());
    } catch (const std::exception& error) {
      device.fail(name + ": " + error.what());
    }
  };
}

}  // namespace

void launch(Device& device, const std::string& name, std::function<void()> kernel) {
  Accelerator::get().use(device.index());
  issue_to(device, current_stream(device.index())).give(guarded(device, name, std::move(kernel)));
}

void launch_and_wait(Device& device, const std::string& name, std::function<void()> kernel) {
  Accelerator& accelerator = Accelerator::get();
  launch(device, name, std::move(kernel));
  accelerator.wait(*device.queue(current_stream(device.index())).mark(), device, name);
}

void keep_wrapped(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

at::Tensor KernelTensors::of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == c10::DeviceType::PrivateUse1 &&
                  tensor.device().index() == device_.index(),
              "a kernel of standin:", device_.index(), " cannot use memory of ", tensor.device());
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const c10::Storage* found = nullptr;
  for (const auto& [known, alias] : storages_) {
    if (known == storage) found = &alias;
  }
  if (found == nullptr) {
    const void* address = tensor.storage().data();
    void* memory = nullptr;
    if (address != nullptr) {
      TORCH_CHECK(device_.memory().holds(address), "a kernel of standin:", device_.index(),
                  " cannot use the address ", address);
      memory = device_.memory().for_kernels(address);
    }
    c10::DataPtr data(memory, c10::Device(c10::DeviceType::CPU));
    storages_.emplace_back(storage, c10::Storage(c10::Storage::use_byte_size_t(),
                                                 tensor.storage().nbytes(), std::move(data),
                                                 /*allocator=*/nullptr, /*resizable=*/false));
    found = &storages_.back().second;
  }
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(*found), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  keep_wrapped(tensor, alias);
  return alias;
}

at::Tensor empty(Device& device, at::IntArrayRef sizes, at::IntArrayRef strides,
                 at::ScalarType dtype) {
  const c10::DeviceGuard guard(
      c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device.index())));
  return at::Tensor(
      at::detail::empty_strided_generic(sizes, strides, &Allocator::get(),
                                        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype));
}

}  // namespace rannc::standin
