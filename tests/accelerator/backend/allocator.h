#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "machine/accelerator.h"

namespace rannc::standin {

/// Behaves as CUDA's: a block belongs to the stream that was current when it was made, and may be
/// had again there at once; one that other streams were told of (`record_stream`) comes back when
/// these have passed where they were. Memory is taken from the device in segments, which are cut.
/// Beyond CUDA's, a block that comes back is overwritten with NaN in its stream's order, and so is
/// a new segment: who reads what is no longer, or not yet, there is seen.
class Allocator final : public c10::DeviceAllocator {
 public:
  static Allocator& get();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool initialized() override { return Accelerator::get().running(); }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  /// No more than `fraction` of the device's memory is reserved.
  void limit(int device, double fraction);

  struct Block;

 private:
  struct OfDevice;
  Allocator();
  static void free(void* block);
  OfDevice& of(int device);
  Block* find(OfDevice& pool, int64_t bytes, int64_t stream);
  Block* segment(OfDevice& pool, int64_t bytes, int64_t stream);
  void cut(OfDevice& pool, Block* block, int64_t bytes);
  void end_use(Block* block);
  void come_back(OfDevice& pool, Block* block);
  void look_at_waiting(OfDevice& pool, bool wait);
  void give_back_segments(OfDevice& pool);

  std::mutex mutex_;
  std::vector<std::unique_ptr<OfDevice>> pools_;
};

}  // namespace rannc::standin
