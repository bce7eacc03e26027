#include "runtime/device/host_memory.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "rannc/util/log.h"

namespace rannc::runtime {

at::Tensor host_memory(int64_t elements, at::ScalarType dtype, c10::Device device) {
  const at::TensorOptions ordinary = at::TensorOptions().dtype(dtype);
  if (device.is_cpu()) return at::empty({elements}, ordinary);
  try {
    return at::empty({elements}, ordinary.pinned_memory(true));
  } catch (const c10::Error& error) {
    static std::atomic_flag told = ATOMIC_FLAG_INIT;
    if (!told.test_and_set()) {
      const std::string what = error.what_without_backtrace();
      log::warn("runtime",
                c10::str("no pinned memory for messages of ", device, " (",
                         what.substr(0, what.find('\n')), "): they go through ordinary memory, ",
                         "which takes longer. A smaller Config(pinned_memory_mib) may help"));
    }
    return at::empty({elements}, ordinary);
  }
}

HostMemory::HostMemory(int64_t most_pinned_bytes, c10::Device device)
    : most_pinned_bytes_(most_pinned_bytes), device_(device) {}

at::Tensor HostMemory::take(int64_t bytes) {
  {
    const std::scoped_lock lock(mutex_);
    drop_dry();
    if (pinned_bytes_ + bytes > most_pinned_bytes_) return at::empty({bytes}, at::kByte);
    pinned_bytes_ += bytes;  // before it is there: others may ask meanwhile
    most_used_ = std::max(most_used_, pinned_bytes_);
  }
  at::Tensor taken = host_memory(bytes, at::kByte, device_);
  if (!taken.is_pinned()) {
    const std::scoped_lock lock(mutex_);
    pinned_bytes_ -= bytes;
  }
  return taken;
}

void HostMemory::free(at::Tensor taken, std::shared_ptr<comm::Event> event) {
  if (!taken.defined() || !taken.is_pinned()) return;
  const std::scoped_lock lock(mutex_);
  if (event) {
    drying_.push_back({std::move(taken), std::move(event)});
    return;
  }
  const int64_t bytes = taken.numel();
  taken.reset();
  pinned_bytes_ -= bytes;
}

void HostMemory::drop_dry() {
  std::erase_if(drying_, [this](const Drying& each) {
    if (!each.event->done()) return false;
    pinned_bytes_ -= each.taken.numel();
    return true;
  });
}

int64_t HostMemory::pinned_bytes() const {
  const std::scoped_lock lock(mutex_);
  return pinned_bytes_;
}

int64_t HostMemory::most_pinned_bytes_used() const {
  const std::scoped_lock lock(mutex_);
  return most_used_;
}

}  // namespace rannc::runtime
