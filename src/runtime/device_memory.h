#pragma once

#include <ATen/core/Tensor.h>

#include "rannc/comm/device.h"

namespace rannc::runtime {

/// The memory of a contiguous tensor, to be read or written after what `stream` was given so far.
[[nodiscard]] inline comm::Buffer memory_of(const at::Tensor& tensor, comm::Stream& stream) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), stream.record()};
}

}  // namespace rannc::runtime
