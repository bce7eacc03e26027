#pragma once

#include <ATen/core/Generator.h>

namespace rannc::standin {

/// Random numbers as CUDA's: a seed and an offset, both of the host. An operator takes its numbers
/// when it is issued, by advancing the offset, and draws them when it runs.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  /// The generator of the host that draws `count` numbers for an operator issued now.
  [[nodiscard]] at::Generator take(int64_t count);

 private:
  Generator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

[[nodiscard]] const at::Generator& default_generator(int device);
/// That of `given`, or the default of `device`.
[[nodiscard]] at::Generator take_numbers(const std::optional<at::Generator>& given, int device,
                                         int64_t count);

}  // namespace rannc::standin
