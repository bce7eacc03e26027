#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "machine/accelerator.h"

namespace rannc::standin {

/// Gives `kernel` to the current stream of `device`. What it throws is the device's end.
void launch(Device& device, const std::string& name, std::function<void()> kernel);
/// The same, and the host waits until it is done.
void launch_and_wait(Device& device, const std::string& name, std::function<void()> kernel);

/// Tensors as kernels see them: on the host, in the second mapping. They do not keep memory alive,
/// as what a CUDA kernel gets does not. Tensors of one storage share one here, too.
class KernelTensors {
 public:
  explicit KernelTensors(Device& device) : device_(device) {}
  [[nodiscard]] at::Tensor of(const at::Tensor& tensor);

 private:
  Device& device_;
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> storages_;
};

/// A number that Python made a tensor of has no say in the dtype of results, here as there.
void keep_wrapped(const at::Tensor& from, const at::Tensor& to);

/// Memory of the current stream of `device`, without values.
[[nodiscard]] at::Tensor empty(Device& device, at::IntArrayRef sizes, at::IntArrayRef strides,
                               at::ScalarType dtype);

}  // namespace rannc::standin
