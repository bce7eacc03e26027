#include "backend/allocator.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <tuple>

namespace rannc::standin {
namespace {

// CUDA's caching allocator in torch: sizes of blocks, and of the segments that they are cut from.
constexpr int64_t kRounding = 512;
constexpr int64_t kSmallest = int64_t{1} << 20;  // up to here, blocks are small
constexpr int64_t kSmallSegment = int64_t{2} << 20;
constexpr int64_t kLargeBlock = int64_t{10} << 20;  // from here, a block has a segment of its own
constexpr int64_t kLargeSegment = int64_t{20} << 20;

constexpr int kNotANumber = 0xff;  // each byte: NaN in every floating type, and -1 in the others

int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

int64_t segment_bytes(int64_t bytes) {
  if (bytes <= kSmallest) return kSmallSegment;
  return bytes < kLargeBlock ? kLargeSegment : round_up(bytes, kSmallSegment);
}

using Stats = c10::CachingDeviceAllocator::DeviceStats;
constexpr size_t kAll = 0;  // c10's StatType::AGGREGATE

template <typename Function>
void for_each_stat(Stats& stats, Function function) {
  for (auto* array : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                      &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                      &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (auto& stat : *array) function(stat);
  }
}

}  // namespace

struct Allocator::Block {
  OfDevice* pool;
  int64_t stream;
  char* address;
  int64_t bytes;
  int64_t requested = 0;
  bool small;
  bool taken = false;
  Block* before = nullptr;  // in the segment
  Block* after = nullptr;
  std::set<int64_t> other_streams{};
};

struct Allocator::OfDevice {
  explicit OfDevice(Device& of) : device(of), limit_bytes(of.memory().bytes()) {}

  struct Order {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->stream, a->small, a->bytes, a->address) <
             std::tie(b->stream, b->small, b->bytes, b->address);
    }
  };
  struct Waiting {
    Block* block;
    std::vector<std::shared_ptr<Mark>> marks;
  };

  Device& device;
  int64_t limit_bytes;
  std::set<Block*, Order> free;
  std::list<Waiting> waiting;  // for streams that were told of them
  Stats stats;
};

Allocator::Allocator() = default;

Allocator& Allocator::get() {
  static auto* allocator = new Allocator;
  return *allocator;
}

Allocator::OfDevice& Allocator::of(int device) {
  Accelerator& accelerator = Accelerator::get();
  while (pools_.size() < static_cast<size_t>(accelerator.devices())) {
    pools_.push_back(
        std::make_unique<OfDevice>(accelerator.device(static_cast<int>(pools_.size()))));
  }
  Device& checked = accelerator.device(device);
  return *pools_[static_cast<size_t>(checked.index())];
}

c10::DataPtr Allocator::allocate(size_t size) {
  const int index = current_device();
  const c10::Device on(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index));
  Accelerator& accelerator = Accelerator::get();
  accelerator.use(index);
  if (size == 0) return {nullptr, nullptr, &Allocator::free, on};

  const std::lock_guard lock(mutex_);
  OfDevice& pool = of(index);
  const int64_t requested = static_cast<int64_t>(size);
  const int64_t bytes = round_up(requested, kRounding);
  const int64_t stream = current_stream(index);
  look_at_waiting(pool, /*wait=*/false);
  const bool fails = accelerator.faults.due(Fault::allocation);
  Block* block = fails ? nullptr : find(pool, bytes, stream);
  if (block == nullptr && !fails) block = segment(pool, bytes, stream);
  if (block == nullptr && !fails) {
    ++pool.stats.num_alloc_retries;
    look_at_waiting(pool, /*wait=*/true);
    give_back_segments(pool);
    block = segment(pool, bytes, stream);
  }
  if (block == nullptr) {
    ++pool.stats.num_ooms;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "standin:", index, " is out of memory: ", requested,
                     " bytes were asked for, ", pool.stats.allocated_bytes[kAll].current, " of ",
                     pool.limit_bytes, " are in use, ", pool.stats.reserved_bytes[kAll].current,
                     " are reserved");
  }
  cut(pool, block, bytes);
  block->taken = true;
  block->requested = requested;
  Stats& stats = pool.stats;
  stats.allocation[kAll].increase(1);
  stats.active[kAll].increase(1);
  stats.allocated_bytes[kAll].increase(static_cast<size_t>(block->bytes));
  stats.active_bytes[kAll].increase(static_cast<size_t>(block->bytes));
  stats.requested_bytes[kAll].increase(size);
  c10::reportMemoryUsageToProfiler(block->address, block->bytes,
                                   static_cast<size_t>(stats.allocated_bytes[kAll].current),
                                   static_cast<size_t>(stats.reserved_bytes[kAll].current), on);
  return {block->address, block, &Allocator::free, on};
}

c10::DeleterFnPtr Allocator::raw_deleter() const { return nullptr; }

// The smallest that fits. One of a large block's rest is not taken for much less than it has, as
// otherwise one small tensor would keep the memory of a large one.
Allocator::Block* Allocator::find(OfDevice& pool, int64_t bytes, int64_t stream) {
  Block key{.pool = &pool,
            .stream = stream,
            .address = nullptr,
            .bytes = bytes,
            .small = bytes <= kSmallest};
  const auto found = pool.free.lower_bound(&key);
  if (found == pool.free.end()) return nullptr;
  Block* block = *found;
  if (block->stream != stream || block->small != key.small) return nullptr;
  pool.free.erase(found);
  return block;
}

Allocator::Block* Allocator::segment(OfDevice& pool, int64_t bytes, int64_t stream) {
  const int64_t length = segment_bytes(bytes);
  auto& reserved = pool.stats.reserved_bytes[kAll];
  if (reserved.current + length > pool.limit_bytes) return nullptr;
  void* address = pool.device.memory().take(length);
  if (address == nullptr) return nullptr;
  std::memset(pool.device.memory().for_kernels(address), kNotANumber, static_cast<size_t>(length));
  reserved.increase(static_cast<size_t>(length));
  pool.stats.segment[kAll].increase(1);
  ++pool.stats.num_device_alloc;
  return new Block{.pool = &pool,
                   .stream = stream,
                   .address = static_cast<char*>(address),
                   .bytes = length,
                   .small = bytes <= kSmallest};
}

void Allocator::cut(OfDevice& pool, Block* block, int64_t bytes) {
  const int64_t rest = block->bytes - bytes;
  if (rest < kRounding || (!block->small && rest <= kSmallest)) return;
  auto* other = new Block{.pool = &pool,
                          .stream = block->stream,
                          .address = block->address + bytes,
                          .bytes = rest,
                          .small = block->small,
                          .before = block,
                          .after = block->after};
  if (block->after != nullptr) block->after->before = other;
  block->after = other;
  block->bytes = bytes;
  pool.free.insert(other);
}

void Allocator::free(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block == nullptr) return;
  Allocator& allocator = get();
  const std::lock_guard lock(allocator.mutex_);
  allocator.end_use(block);
}

void Allocator::end_use(Block* block) {
  OfDevice& pool = *block->pool;
  Stats& stats = pool.stats;
  stats.allocation[kAll].decrease(1);
  stats.allocated_bytes[kAll].decrease(static_cast<size_t>(block->bytes));
  stats.requested_bytes[kAll].decrease(static_cast<size_t>(block->requested));
  c10::reportMemoryUsageToProfiler(block->address, -block->bytes,
                                   static_cast<size_t>(stats.allocated_bytes[kAll].current),
                                   static_cast<size_t>(stats.reserved_bytes[kAll].current),
                                   c10::Device(c10::DeviceType::PrivateUse1,
                                               static_cast<c10::DeviceIndex>(pool.device.index())));
  if (!Accelerator::get().running()) return;
  if (block->other_streams.empty()) {
    come_back(pool, block);
    return;
  }
  std::vector<std::shared_ptr<Mark>> marks;
  for (const int64_t stream : block->other_streams) {
    marks.push_back(pool.device.queue(stream).mark());
  }
  block->other_streams.clear();
  pool.waiting.push_back({block, std::move(marks)});
}

void Allocator::come_back(OfDevice& pool, Block* block) {
  pool.stats.active[kAll].decrease(1);
  pool.stats.active_bytes[kAll].decrease(static_cast<size_t>(block->bytes));
  void* memory = pool.device.memory().for_kernels(block->address);
  pool.device.queue(block->stream)
      .give_at_once([memory, bytes = static_cast<size_t>(block->bytes)] {
        std::memset(memory, kNotANumber, bytes);
      });
  block->taken = false;
  const auto join = [&pool](Block* first, Block* second) {
    first->bytes += second->bytes;
    first->after = second->after;
    if (second->after != nullptr) second->after->before = first;
    delete second;
  };
  if (Block* after = block->after; after != nullptr && !after->taken) {
    pool.free.erase(after);
    join(block, after);
  }
  if (Block* before = block->before; before != nullptr && !before->taken) {
    pool.free.erase(before);
    join(before, block);
    block = before;
  }
  pool.free.insert(block);
}

void Allocator::look_at_waiting(OfDevice& pool, bool wait) {
  for (auto it = pool.waiting.begin(); it != pool.waiting.end();) {
    if (wait) {
      Accelerator::get().count_wait("allocator");
      for (const auto& mark : it->marks) mark->wait();
    }
    const bool passed = std::all_of(it->marks.begin(), it->marks.end(),
                                    [](const auto& mark) { return mark->reached(); });
    if (!passed) {
      ++it;
      continue;
    }
    come_back(pool, it->block);
    it = pool.waiting.erase(it);
  }
}

// The device has to be idle, as for cudaFree.
void Allocator::give_back_segments(OfDevice& pool) {
  Accelerator::get().count_wait("allocator");
  pool.device.drain();
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Block* block = *it;
    if (block->before != nullptr || block->after != nullptr) {
      ++it;
      continue;
    }
    it = pool.free.erase(it);
    pool.device.memory().give_back(block->address, block->bytes);
    pool.stats.reserved_bytes[kAll].decrease(static_cast<size_t>(block->bytes));
    pool.stats.segment[kAll].decrease(1);
    ++pool.stats.num_device_free;
    delete block;
  }
}

void Allocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  Device& device = Accelerator::get().use(current_device());
  void* target = device.memory().for_kernels(to);
  const void* source = device.memory().for_kernels(from);
  issue_to(device, current_stream(device.index())).give([=] {
    std::memcpy(target, source, bytes);
  });
}

void Allocator::emptyCache(c10::MempoolId_t /*pool*/) {
  const std::lock_guard lock(mutex_);
  for (int index = 0; index < Accelerator::get().devices(); ++index) {
    OfDevice& pool = of(index);
    if (!pool.device.has_context()) continue;
    look_at_waiting(pool, /*wait=*/true);
    give_back_segments(pool);
  }
}

void Allocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  if (data.get() == nullptr || data.get_deleter() != &Allocator::free) return;
  auto* block = static_cast<Block*>(data.get_context());
  TORCH_CHECK(stream.device_index() == block->pool->device.index(), "record_stream: memory of ",
              data.device(), " and a stream of ", stream.device());
  const std::lock_guard lock(mutex_);
  if (stream.id() != block->stream) block->other_streams.insert(stream.id());
}

Stats Allocator::getDeviceStats(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return of(device).stats;
}

void Allocator::resetAccumulatedStats(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  Stats& stats = of(device).stats;
  for_each_stat(stats, [](auto& stat) { stat.reset_accumulated(); });
  stats.num_alloc_retries = 0;
  stats.num_ooms = 0;
}

void Allocator::resetPeakStats(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  for_each_stat(of(device).stats, [](auto& stat) { stat.reset_peak(); });
}

std::pair<size_t, size_t> Allocator::getMemoryInfo(c10::DeviceIndex device) {
  Memory& memory = Accelerator::get().use(device).memory();
  return {static_cast<size_t>(memory.free_bytes()), static_cast<size_t>(memory.bytes())};
}

void Allocator::limit(int device, double fraction) {
  const std::lock_guard lock(mutex_);
  OfDevice& pool = of(device);
  pool.limit_bytes =
      static_cast<int64_t>(fraction * static_cast<double>(pool.device.memory().bytes()));
}

}  // namespace rannc::standin
