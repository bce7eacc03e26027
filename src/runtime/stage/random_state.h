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
  [[nodiscard]] bool equals(const RandomState& other) const;

 private:
  c10::Device device_{c10::kCPU};
  at::Tensor cpu_;
  at::Tensor accelerator_;  ///< undefined on the CPU, and without a generator
};

/// While it lives, random numbers are those of this rank, even where all ranks called
/// torch.manual_seed(0): replicas that draw equal masks would be worth less. The user's generator
/// gives one number for it and then goes on after that, so the generators of ranks that were in
/// step still are.
class RankRandom {
 public:
  RankRandom(c10::Device device, int rank);
  ~RankRandom() { user_.restore(); }
  RankRandom(const RankRandom&) = delete;
  RankRandom& operator=(const RankRandom&) = delete;

 private:
  RandomState user_;
};

}  // namespace rannc::runtime
