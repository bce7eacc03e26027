#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "rannc/comm/communicator.h"
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

/// What ranks take a tensor's numbers for; none where they share no such.
[[nodiscard]] inline std::optional<comm::Element> element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return comm::Element::float64;
    case at::kFloat:
      return comm::Element::float32;
    case at::kHalf:
      return comm::Element::float16;
    case at::kBFloat16:
      return comm::Element::bfloat16;
    case at::kLong:
      return comm::Element::int64;
    case at::kInt:
      return comm::Element::int32;
    case at::kChar:
      return comm::Element::int8;
    case at::kByte:
      return comm::Element::uint8;
    default:
      return {};
  }
}

/// The memory of a plain tensor, to be read or written after what `stream` was given so far.
[[nodiscard]] inline comm::Buffer memory_of(const at::Tensor& tensor, comm::Stream& stream) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), stream.record()};
}

}  // namespace rannc::runtime
