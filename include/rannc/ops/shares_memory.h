#pragma once

#include <ATen/core/Tensor.h>

namespace rannc::ops {

/// Whether other tensors look at the memory of `gradient`, as where torch gives two tensors one
/// gradient in two views. Then nothing can be added to it in place.
inline bool shares_memory(const at::Tensor& gradient) {
  return gradient.has_storage() && gradient.storage().use_count() > 1;
}

}  // namespace rannc::ops
