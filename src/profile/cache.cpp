#include "profile/cache.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rannc::profile {
namespace {

/// Bytes that are read between two timed calls, several times a core's second-level cache; and the
/// size of a step beyond which weights are flushed from a last level, too, which is shared.
/// tuned by: `rannc run -n 2 benchmarks/predicted_and_measured.py` and the CNN of
/// `benchmarks/runtime/peers.py`; on one machine only.
/// without it: convolutions of 8 rows with 256 channels were timed a third too fast. Reading more
/// than that made all operators a fifth too slow.
constexpr int64_t kEvictedBytes = 8 << 20;
constexpr int64_t kLastLevelBytes = 32 << 20;

constexpr int64_t kLineBytes = 64;

void read(const void* data, int64_t bytes) {
  const auto* begin = static_cast<const volatile char*>(data);
  for (int64_t i = 0; i < bytes; i += kLineBytes) (void)begin[i];
}

/// Out of all levels. Nothing on other processors, which forbid it or have no such instruction.
void flush([[maybe_unused]] const void* data, [[maybe_unused]] size_t bytes) {
#if defined(__x86_64__)
  const auto* begin = static_cast<const char*>(data);
  for (size_t i = 0; i < bytes; i += kLineBytes) _mm_clflush(begin + i);
  _mm_mfence();
#endif
}

int64_t evicted_bytes(int64_t step_bytes) {
  return std::clamp<int64_t>(step_bytes, 0, kEvictedBytes);
}

}  // namespace

Cache::Cache(c10::Device device, int64_t step_bytes) {
  if (!device.is_cpu()) return;
  flushes_ = step_bytes > kLastLevelBytes;
  pool_.resize(static_cast<size_t>(evicted_bytes(step_bytes)) / sizeof(int64_t));
}

std::string Cache::describe(int64_t step_bytes) {
  const char* weights = step_bytes > kLastLevelBytes ? ", weights flushed" : "";
  return c10::str("evicted ", evicted_bytes(step_bytes), weights);
}

void Cache::evict(const std::vector<at::Tensor>& weights) {
  read(pool_.data(), static_cast<int64_t>(pool_.size() * sizeof(int64_t)));
  if (!flushes_) return;
  for (const at::Tensor& weight : weights) {
    // One that is larger leaves little of itself there, and flushing it takes long.
    const size_t bytes = weight.is_cpu() ? weight.storage().nbytes() : 0;
    if (bytes <= kLastLevelBytes) flush(weight.storage().data(), bytes);
  }
}

void Cache::touch(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return;
  // The strides may leave holes; reading those, too, does no harm.
  const c10::Storage& storage = tensor.storage();
  read(storage.data(), static_cast<int64_t>(std::min<size_t>(storage.nbytes(), kEvictedBytes)));
}

}  // namespace rannc::profile
