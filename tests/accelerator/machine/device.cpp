#include "machine/device.h"

#include <c10/util/Exception.h>

#include <vector>

namespace rannc::standin {

Device::Device(int index, int64_t memory_bytes, uint64_t seed, const std::atomic<double>& delay_us)
    : index_(index), seed_(seed), delay_us_(delay_us), memory_(memory_bytes) {}

Queue& Device::queue(int64_t stream) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Queue>& queue = queues_.at(static_cast<size_t>(stream));
  if (!queue) {
    const std::string name = "standin" + std::to_string(index_) + "." + std::to_string(stream);
    // Any numbers do, as long as no two queues draw the same delays.
    const uint64_t seed = seed_ * 1'000'003 + static_cast<uint64_t>(index_ * 1'000 + stream);
    queue = std::make_unique<Queue>(name, seed, delay_us_,
                                    [this, name](const char* what) { fail(name + ": " + what); });
  }
  return *queue;
}

int64_t Device::next_stream(bool high_priority) {
  const std::lock_guard lock(mutex_);
  int64_t& next = next_.at(high_priority ? 1 : 0);
  return 1 + (high_priority ? kPool : 0) + next++ % kPool;
}

void Device::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (!failed_) error_ = what;
  failed_ = true;
}

void Device::check() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(false, "standin:", index_,
              " does nothing any more: an earlier kernel failed: ", error_);
}

void Device::forget_error() {
  const std::lock_guard lock(mutex_);
  failed_ = false;
}

void Device::drain() {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& queue : queues_) {
      if (queue) marks.push_back(queue->mark());
    }
  }
  for (const auto& mark : marks) mark->wait();
}

void Device::stop() {
  drain();  // first: one queue may wait for another
  const std::lock_guard lock(mutex_);
  for (auto& queue : queues_) queue.reset();
}

}  // namespace rannc::standin
