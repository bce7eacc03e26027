// Operators that make tensors, or look at memory in another way: nothing is computed.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>

#include "backend/allocator.h"
#include "backend/by_hand.h"
#include "backend/storage.h"

namespace rannc::standin {
namespace {

using Options = std::optional<c10::Device>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device on(Options device) {
  return device.value_or(c10::Device(c10::DeviceType::PrivateUse1));
}

void check_plain(std::optional<at::Layout> layout, std::optional<bool> pinned) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::Layout::Strided,
              "a stand-in device has only strided tensors");
  TORCH_CHECK(!pinned.value_or(false), "only memory of the host can be pinned");
}

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, Options device,
                               std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  check_plain(layout, pinned);
  const c10::DeviceGuard guard(on(device));
  return at::Tensor(at::detail::empty_generic(sizes, &Allocator::get(), kKeys,
                                              c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         Options device, std::optional<bool> pinned) {
  check_plain(layout, pinned);
  const c10::DeviceGuard guard(on(device));
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &Allocator::get(), kKeys,
                                                      c10::dtype_or_default(dtype)));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(
      !format || *format == at::MemoryFormat::Contiguous || *format == at::MemoryFormat::Preserve,
      "resize_ to another memory format");
  if (self.sizes() == sizes) return self;
  resize(self, sizes, c10::contiguous_strides(sizes));
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize(self, sizes, strides.empty() ? c10::contiguous_strides(sizes) : at::DimVector(strides));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto count =
      static_cast<int64_t>(source.nbytes() / static_cast<size_t>(self.dtype().itemsize()));
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, Allocator::get().allocate(0),
                    &Allocator::get(), /*resizable=*/true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

}  // namespace

std::vector<ByHand> views() {
  using c10::KernelFunction;
  return {
      {"empty.memory_format", KernelFunction::makeFromUnboxedRuntimeFunction(&empty_memory_format)},
      {"empty_strided", KernelFunction::makeFromUnboxedRuntimeFunction(&empty_strided)},
      {"resize_", KernelFunction::makeFromUnboxedRuntimeFunction(&resize_)},
      {"as_strided",
       KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::as_strided_tensorimpl)},
      {"view", KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::view)},
      {"_reshape_alias",
       KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::_reshape_alias)},
      {"unfold", KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::unfold)},
      {"view_as_real", KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::view_as_real)},
      {"view_as_complex",
       KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::view_as_complex)},
      {"is_set_to", KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::is_set_to)},
      {"set_.source_Storage", KernelFunction::makeFromUnboxedRuntimeFunction(&set_whole_storage)},
      {"set_.source_Storage_storage_offset",
       KernelFunction::makeFromUnboxedRuntimeFunction(&set_storage)},
      {"set_.source_Tensor", KernelFunction::makeFromUnboxedRuntimeFunction(&set_tensor)},
      {"set_", KernelFunction::makeFromUnboxedRuntimeFunction(&set_nothing)},
  };
}

}  // namespace rannc::standin
