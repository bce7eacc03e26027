#pragma once

#include <ATen/core/Tensor.h>

namespace rannc::standin {

/// Gives `storage` other memory, and its values as far as they fit.
void resize(const c10::Storage& storage, size_t bytes);

/// Gives `tensor` other sizes; its storage grows if it must.
void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace rannc::standin
