#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace rannc::runtime {

/// What a stage's operators draw random numbers from: the CPU's generator and the device's.
class RandomState {
 public:
  RandomState() = default;
  [[nodiscard]] static RandomState now(c10::Device device);
  void restore() const;

 private:
  c10::Device device_{c10::kCPU};
  at::Tensor cpu_;
  at::Tensor accelerator_;  ///< undefined on the CPU
};

}  // namespace rannc::runtime
