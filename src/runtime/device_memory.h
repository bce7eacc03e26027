#pragma once

#include <ATen/core/Tensor.h>

#include "rannc/comm/device.h"

namespace rannc::runtime {

/// Whether the memory of `tensor` holds its numbers in their order, and not those of its conjugate
/// or negative, from which torch makes them when they are read.
[[nodiscard]] inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// The tensor itself if it is plain, else a copy that is.
[[nodiscard]] inline at::Tensor plain(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous();
}

/// The memory of a plain tensor, to be read or written after what `stream` was given so far.
[[nodiscard]] inline comm::Buffer memory_of(const at::Tensor& tensor, comm::Stream& stream) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), stream.record()};
}

}  // namespace rannc::runtime
