#include "backend/storage.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

#include "backend/allocator.h"
#include "backend/launch.h"

namespace rannc::standin {

void resize(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "a storage of ", storage.device(), " that cannot be resized");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = Allocator::get().allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    Device& device = Accelerator::get().device(storage.device().index());
    void* to = device.memory().for_kernels(data.get());
    const void* from = device.memory().for_kernels(storage.data());
    launch(device, "resize", [=] { std::memcpy(to, from, kept); });
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const size_t bytes = at::detail::computeStorageNbytes(
      sizes, strides, tensor.itemsize(), static_cast<size_t>(tensor.storage_offset()));
  if (bytes > tensor.storage().nbytes()) resize(tensor.storage(), bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

}  // namespace rannc::standin
