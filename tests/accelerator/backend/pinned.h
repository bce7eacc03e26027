#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "machine/queue.h"

namespace rannc::standin {

/// Memory of the host that devices copy from and to on their own. A block that is freed while a
/// copy is under way comes back after it; what comes back is overwritten.
class PinnedMemory final : public at::HostAllocator {
 public:
  static PinnedMemory& get();

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool record_event(void* address, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  [[nodiscard]] bool holds(const void* address) const;
  /// A copy from or to `address` is under way until `mark`.
  void busy_until(const void* address, std::shared_ptr<Mark> mark);

 private:
  struct Block;
  using Blocks = std::map<const char*, std::unique_ptr<Block>>;
  static void free(void* block);
  [[nodiscard]] Block* block_of(const void* address) const;

  mutable std::mutex mutex_;
  Blocks blocks_;
  at::HostStats stats_;
};

}  // namespace rannc::standin
