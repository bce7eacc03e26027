#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace rannc::profile {

/// Brings the CPU's cache into the state in which an operator meets it within a training step: its
/// weights and what it saved for its backward were last used long ago, and only what the operator
/// before it wrote is there. Does nothing for other devices, whose caches are small against what a
/// step touches, and whose memory is fast.
class Cache {
 public:
  /// `step_bytes`: what a step touches between two uses of a tensor. A smaller model stays cached.
  Cache(c10::Device device, int64_t step_bytes);

  /// What evict() does for such a step.
  [[nodiscard]] static std::string describe(int64_t step_bytes);

  /// Everything that was used so far is out of the cache, up to the second level of it; `weights`
  /// are in no level, if a step touches more than the last one holds. (Without that, a convolution
  /// of few rows with large weights was measured a third too fast.)
  void evict(const std::vector<at::Tensor>& weights);
  /// `tensor` is in the cache.
  static void touch(const at::Tensor& tensor);

 private:
  std::vector<int64_t> pool_;
  bool flushes_ = false;
};

}  // namespace rannc::profile
