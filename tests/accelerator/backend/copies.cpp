// Copies between host and devices. Pinned memory is read and written when the copy runs; what a
// pageable tensor of the host holds is read at once, and the host waits for what is written there.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "backend/allocator.h"
#include "backend/by_hand.h"
#include "backend/launch.h"
#include "backend/pinned.h"

namespace rannc::standin {
namespace {

using std::make_shared;

constexpr const char* kToDevice = "copy to device";
constexpr const char* kToHost = "copy to host";

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

/// The kernel of a copy that crosses a link; `fails` was decided when it was issued, so that a test
/// knows which.
auto crossing(const at::Tensor& to, const at::Tensor& from) {
  const bool fails = Accelerator::get().faults.due(Fault::copy);
  return [to, from, fails] {
    TORCH_CHECK(!fails, "a copy of ", bytes_of(to), " bytes failed");
    Accelerator::get().faults.cross_link(bytes_of(to));
    to.copy_(from);
  };
}

Device& device_of(const at::Tensor& tensor) {
  return Accelerator::get().use(tensor.device().index());
}

// A kernel's tensor of pinned memory, which is not kept alive but for its mark.
at::Tensor borrowed(const at::Tensor& tensor) {
  c10::DataPtr data(tensor.storage().mutable_data(), c10::Device(c10::DeviceType::CPU));
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data),
                   /*allocator=*/nullptr, /*resizable=*/false),
      c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  return alias;
}

/// As CUDA copies: in one piece, without a change of dtype.
bool direct(const at::Tensor& host, const at::Tensor& on_device) {
  return PinnedMemory::get().holds(host.const_data_ptr()) && host.is_non_overlapping_and_dense() &&
         host.scalar_type() == on_device.scalar_type() && host.sizes() == on_device.sizes() &&
         host.strides() == on_device.strides();
}

void keep_pinned(Device& device, const at::Tensor& host) {
  PinnedMemory::get().busy_until(host.const_data_ptr(),
                                 device.queue(current_stream(device.index())).mark());
}

void to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Device& device = device_of(to);
  KernelTensors tensors(device);
  const bool pinned = direct(from, to);
  auto copy = crossing(tensors.of(to), pinned ? borrowed(from) : from.clone());
  if (!non_blocking) {
    launch_and_wait(device, kToDevice, std::move(copy));
    return;
  }
  launch(device, kToDevice, std::move(copy));
  if (pinned) keep_pinned(device, from);
}

void to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Device& device = device_of(from);
  KernelTensors tensors(device);
  const bool late = non_blocking && direct(to, from);
  auto copy = crossing(late ? borrowed(to) : to, tensors.of(from));
  if (!late) {
    launch_and_wait(device, kToHost, std::move(copy));
    return;
  }
  launch(device, kToHost, std::move(copy));
  keep_pinned(device, to);
}

// As CUDA's: on the source's stream, after what the target's stream has been given, and the
// target's stream goes on after it.
void between_devices(const at::Tensor& from, const at::Tensor& to) {
  Device& source = device_of(from);
  Device& target = device_of(to);
  Queue& from_queue = source.queue(current_stream(source.index()));
  Queue& to_queue = target.queue(current_stream(target.index()));
  from_queue.wait_for(to_queue.mark());
  KernelTensors of_source(source);
  KernelTensors of_target(target);
  launch(source, "copy to another device", crossing(of_target.of(to), of_source.of(from)));
  to_queue.wait_for(from_queue.mark());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (to.numel() == 0) return to;
  if (from.is_cpu()) {
    to_device(from.sizes() == to.sizes() ? from : from.expand_as(to), to, non_blocking);
  } else if (to.is_cpu()) {
    to_host(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    between_devices(from, to);
  } else {
    Device& device = device_of(to);
    KernelTensors tensors(device);
    launch(device, "copy",
           [target = tensors.of(to), source = tensors.of(from)] { target.copy_(source); });
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

void record_stream(at::Tensor& self, at::Stream stream) {
  Allocator::get().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

std::vector<ByHand> copies() {
  using c10::KernelFunction;
  return {
      {"_copy_from", KernelFunction::makeFromUnboxedRuntimeFunction(&copy_from)},
      {"_copy_from_and_resize",
       KernelFunction::makeFromUnboxedRuntimeFunction(&copy_from_and_resize)},
      {"record_stream", KernelFunction::makeFromUnboxedRuntimeFunction(&record_stream)},
  };
}

}  // namespace rannc::standin
