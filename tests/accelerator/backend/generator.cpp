#include "backend/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <deque>
#include <mutex>

#include "machine/accelerator.h"

namespace rannc::standin {
namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

uint64_t mix(uint64_t x) {  // splitmix64's: every bit of `x` changes half of the bits
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111eb;
  return x ^ (x >> 31U);
}

}  // namespace

Generator::Generator(c10::DeviceIndex device)
    : c10::GeneratorImpl({c10::DeviceType::PrivateUse1, device},
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void Generator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void Generator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "the state of a stand-in's generator has ", kStateBytes,
              " bytes, not ", state.numel());
  const auto* bytes = static_cast<const char*>(state.data());
  std::memcpy(&seed_, bytes, sizeof seed_);
  std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  at::Tensor state(at::detail::empty_cpu({kStateBytes}, c10::kByte));
  auto* bytes = static_cast<char*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, sizeof seed_);
  std::memcpy(bytes + sizeof seed_, &offset_, sizeof offset_);
  return state.getIntrusivePtr();
}

Generator* Generator::clone_impl() const {
  auto* copy = new Generator(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

at::Generator Generator::take(int64_t count) {
  const uint64_t from = offset_;
  offset_ += (static_cast<uint64_t>(count) + 3) / 4 * 4;  // Philox gives four at a time
  return at::detail::createCPUGenerator(mix(seed_ ^ mix(from)));
}

const at::Generator& default_generator(int device) {
  static std::mutex mutex;
  static auto* generators = new std::deque<at::Generator>;  // references stay
  if (device < 0) device = current_device();
  (void)Accelerator::get().device(device);
  const std::lock_guard lock(mutex);
  while (generators->size() <= static_cast<size_t>(device)) {
    generators->push_back(
        at::make_generator<Generator>(static_cast<c10::DeviceIndex>(generators->size())));
  }
  return (*generators)[static_cast<size_t>(device)];
}

at::Generator take_numbers(const std::optional<at::Generator>& given, int device, int64_t count) {
  at::Generator generator = given && given->defined() ? *given : default_generator(device);
  TORCH_CHECK(generator.device().type() == c10::DeviceType::PrivateUse1,
              "a generator of standin is needed, not of ", generator.device());
  const std::lock_guard lock(generator.mutex());
  return generator.get<Generator>()->take(count);
}

}  // namespace rannc::standin
