#include "backend/pinned.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "machine/accelerator.h"

namespace rannc::standin {

struct PinnedMemory::Block {
  std::vector<char> bytes;
  bool taken = true;
  std::vector<std::shared_ptr<Mark>> busy;

  bool idle() {
    std::erase_if(busy, [](const auto& mark) { return mark->reached(); });
    return busy.empty();
  }
};

PinnedMemory& PinnedMemory::get() {
  static auto* memory = new PinnedMemory;
  return *memory;
}

c10::DataPtr PinnedMemory::allocate(size_t size) {
  const c10::Device host(c10::DeviceType::CPU);
  if (size == 0) return {nullptr, nullptr, &PinnedMemory::free, host};
  TORCH_CHECK_WITH(OutOfMemoryError, !Accelerator::get().faults.due(Fault::pinned),
                   "the host cannot pin ", size, " bytes");
  const std::lock_guard lock(mutex_);
  Block* found = nullptr;
  for (const auto& [address, block] : blocks_) {
    if (!block->taken && block->bytes.size() == size && block->idle()) found = block.get();
  }
  if (found == nullptr) {
    auto block = std::make_unique<Block>();
    block->bytes.resize(size);
    found = block.get();
    blocks_[block->bytes.data()] = std::move(block);
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(size);
    ++stats_.num_host_alloc;
  }
  std::memset(found->bytes.data(), 0xff, size);
  found->taken = true;
  stats_.active_requests.increase(1);
  stats_.active_bytes.increase(size);
  return {found->bytes.data(), found, &PinnedMemory::free, host};
}

void PinnedMemory::free(void* context) {
  if (context == nullptr) return;
  PinnedMemory& memory = get();
  const std::lock_guard lock(memory.mutex_);
  auto* block = static_cast<Block*>(context);
  block->taken = false;
  memory.stats_.active_requests.decrease(1);
  memory.stats_.active_bytes.decrease(block->bytes.size());
}

PinnedMemory::Block* PinnedMemory::block_of(const void* address) const {
  const char* at = static_cast<const char*>(address);
  auto after = blocks_.upper_bound(at);
  if (after == blocks_.begin()) return nullptr;
  Block* block = std::prev(after)->second.get();
  return at < block->bytes.data() + block->bytes.size() ? block : nullptr;
}

bool PinnedMemory::holds(const void* address) const {
  const std::lock_guard lock(mutex_);
  const Block* block = block_of(address);
  return block != nullptr && block->taken;
}

void PinnedMemory::busy_until(const void* address, std::shared_ptr<Mark> mark) {
  const std::lock_guard lock(mutex_);
  if (Block* block = block_of(address)) block->busy.push_back(std::move(mark));
}

bool PinnedMemory::record_event(void* address, void* /*context*/, c10::Stream stream) {
  if (!holds(address)) return false;
  Device& device = Accelerator::get().use(stream.device_index());
  busy_until(address, device.queue(stream.id()).mark());
  return true;
}

void PinnedMemory::empty_cache() {
  const std::lock_guard lock(mutex_);
  std::erase_if(blocks_, [this](const auto& entry) {
    const bool goes = !entry.second->taken && entry.second->idle();
    if (goes) {
      stats_.allocations.decrease(1);
      stats_.allocated_bytes.decrease(entry.second->bytes.size());
      ++stats_.num_host_free;
    }
    return goes;
  });
}

void PinnedMemory::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memcpy(to, from, bytes);
}

at::HostStats PinnedMemory::get_stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void PinnedMemory::reset_accumulated_stats() {
  const std::lock_guard lock(mutex_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                     &stats_.allocated_bytes}) {
    stat->reset_accumulated();
  }
}

void PinnedMemory::reset_peak_stats() {
  const std::lock_guard lock(mutex_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                     &stats_.allocated_bytes}) {
    stat->reset_peak();
  }
}

}  // namespace rannc::standin
