#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rannc/comm/device.h"

namespace rannc::runtime {

/// One dimension in memory of the host for copies to or from `device`: pinned, so that nobody waits
/// for them; where the machine gives no pinned memory, ordinary, which is logged once. For the CPU
/// ordinary.
[[nodiscard]] at::Tensor host_memory(int64_t elements, at::ScalarType dtype, c10::Device device);

/// The same in bytes for messages, of which at most `most_pinned_bytes` are pinned at any time.
/// What goes beyond is ordinary memory: copies take longer, but nothing waits for memory that
/// others hold, so messages cannot wait for each other in a circle. Any thread may call it.
class HostMemory {
 public:
  HostMemory(int64_t most_pinned_bytes, c10::Device device);

  /// Counts as pinned, if it is, until `free`, which gets the last reference.
  [[nodiscard]] at::Tensor take(int64_t bytes);
  /// After `event`, or now.
  void free(at::Tensor taken, std::shared_ptr<comm::Event> event = {});

  /// Pinned bytes in use now, and the most that ever were.
  [[nodiscard]] int64_t pinned_bytes() const;
  [[nodiscard]] int64_t most_pinned_bytes_used() const;

 private:
  struct Drying {
    at::Tensor taken;
    std::shared_ptr<comm::Event> event;
  };
  void drop_dry();

  const int64_t most_pinned_bytes_;
  const c10::Device device_;
  mutable std::mutex mutex_;  // guards the others
  int64_t pinned_bytes_ = 0;
  int64_t most_used_ = 0;
  std::vector<Drying> drying_;
};

}  // namespace rannc::runtime
