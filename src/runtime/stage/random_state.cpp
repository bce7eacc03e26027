#include "runtime/stage/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>

#include <mutex>
#include <optional>

#include "rannc/ops/backend.h"
#include "rannc/util/philox.h"

namespace rannc::runtime {
namespace {

/// Undefined where the backend has no generator.
at::Tensor state_of(c10::Device device) {
  std::optional<at::Generator> generator = ops::generator_of(device);
  if (!generator) return {};
  const std::lock_guard lock(generator->mutex());  // other ranks of a test draw from it, too
  return generator->get_state();
}

void set_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = ops::generator_of(device).value();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void seed(c10::Device device, uint64_t seed) {
  std::optional<at::Generator> generator = ops::generator_of(device);
  if (!generator) return;
  const std::lock_guard lock(generator->mutex());
  generator->set_current_seed(seed);
}

uint64_t next_number() {
  at::Generator generator = ops::generator_of(c10::kCPU).value();
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace

RandomState RandomState::now(c10::Device device) {
  RandomState state;
  state.device_ = device;
  state.cpu_ = state_of(c10::kCPU);
  if (device != c10::kCPU) state.accelerator_ = state_of(device);
  return state;
}

void RandomState::restore() const {
  set_state(c10::kCPU, cpu_);
  if (accelerator_.defined()) set_state(device_, accelerator_);
}

bool RandomState::equals(const RandomState& other) const {
  return at::equal(cpu_, other.cpu_) &&
         (!accelerator_.defined() || at::equal(accelerator_, other.accelerator_));
}

RankRandom::RankRandom(c10::Device device, int rank) {
  const uint64_t own = derive_key(next_number(), static_cast<uint64_t>(rank), 0);
  user_ = RandomState::now(device);
  seed(c10::kCPU, own);
  if (device != c10::kCPU) seed(device, own);
}

}  // namespace rannc::runtime
