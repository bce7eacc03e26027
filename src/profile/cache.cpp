#include "profile/cache.h"

#include <algorithm>

namespace rannc::profile {
namespace {

// Several times a core's second-level cache. The last level is shared, and larger than the part of
// a model that a rank holds in most jobs on CPUs.
constexpr int64_t kMostBytes = 8 << 20;
constexpr int64_t kLineBytes = 64;

void read(const void* data, int64_t bytes) {
  const auto* begin = static_cast<const volatile char*>(data);
  for (int64_t i = 0; i < bytes; i += kLineBytes) (void)begin[i];
}

}  // namespace

Cache::Cache(c10::Device device, int64_t step_bytes) {
  if (!device.is_cpu()) return;
  pool_.resize(static_cast<size_t>(evicted_bytes(step_bytes)) / sizeof(int64_t));
}

int64_t Cache::evicted_bytes(int64_t step_bytes) {
  return std::clamp<int64_t>(step_bytes, 0, kMostBytes);
}

void Cache::evict() { read(pool_.data(), static_cast<int64_t>(pool_.size() * sizeof(int64_t))); }

void Cache::touch(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return;
  // The strides may leave holes; reading those, too, does no harm.
  const c10::Storage& storage = tensor.storage();
  read(storage.data(), static_cast<int64_t>(std::min<size_t>(storage.nbytes(), kMostBytes)));
}

}  // namespace rannc::profile
