#include "runtime/random_state.h"

#include <ATen/Context.h>

#include <mutex>

namespace rannc::runtime {
namespace {

at::Tensor state_of(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());  // other ranks of a test draw from it, too
  return generator.get_state();
}

void set_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
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

}  // namespace rannc::runtime
