#include "rannc/ops/memory.h"

#include <c10/util/Flags.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace rannc::ops {
namespace {

using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

/// Counts for every thread that carries it: autograd hands thread-local debug information on to its
/// own threads, so several may report at once.
///
/// A profiler state that is disabled, not a bare MemoryReportingInfoBase: whoever asks torch
/// whether a profiler is on (a Python autograd function does, in each call) takes what is in this
/// slot for a ProfilerStateBase, and would read its configuration past the end of a smaller object.
///
/// It takes the place of whoever counted before, a recorder around this one or torch's profiler,
/// and hands on what it is told: else the outer one would miss a block here, and see it freed
/// later.
class Counter final : public ProfilerStateBase {
 public:
  /// `outer` stays alive with the thread-local chain that this counter is pushed upon.
  Counter(c10::MemoryReportingInfoBase* outer, std::optional<c10::Device> device)
      : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled)),
        outer_(outer),
        device_(device) {}

  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }
  void reportMemoryUsage(void* block, int64_t bytes, size_t allocated, size_t reserved,
                         c10::Device device) override {
    if (outer_ != nullptr && outer_->memoryProfilingEnabled()) {
      outer_->reportMemoryUsage(block, bytes, allocated, reserved, device);
    }
    if (!counts(device)) return;
    const std::scoped_lock lock(mutex_);
    if (bytes > 0) {
      blocks_[block] = bytes;
      current_ += bytes;
      peak_ = std::max(peak_, current_);
      return;
    }
    // c10 knows the sizes of all blocks that any recorder saw: what was there before this one does
    // not count here when it goes.
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    current_ -= found->second;
    blocks_.erase(found);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t current() const {
    const std::scoped_lock lock(mutex_);
    return current_;
  }
  int64_t peak() const {
    const std::scoped_lock lock(mutex_);
    return peak_;
  }
  void reset_peak() {
    const std::scoped_lock lock(mutex_);
    peak_ = current_;
  }

 private:
  /// The host's allocator says no index.
  bool counts(c10::Device device) const {
    if (!device_) return true;
    const bool same_index =
        device_->index() == device.index() || !device_->has_index() || !device.has_index();
    return device_->type() == device.type() && same_index;
  }

  c10::MemoryReportingInfoBase* const outer_;
  const std::optional<c10::Device> device_;  // whose memory counts
  mutable std::mutex mutex_;                 // guards the rest: several threads report
  std::unordered_map<void*, int64_t> blocks_;
  int64_t current_ = 0;
  int64_t peak_ = 0;
};

c10::MemoryReportingInfoBase* current_counter() {
  return dynamic_cast<c10::MemoryReportingInfoBase*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
}

/// c10 warns when a block is freed that was allocated before the recording: that is no mistake.
/// The level belongs to the process, so the last of several recorders gives it back.
class QuietAllocator {
 public:
  QuietAllocator() {
    const std::scoped_lock lock(mutex_);
    if (count_++ > 0) return;
    level_ = FLAGS_caffe2_log_level;
    FLAGS_caffe2_log_level = std::max(level_, static_cast<int>(c10::GLOG_ERROR));
  }
  ~QuietAllocator() {
    const std::scoped_lock lock(mutex_);
    if (--count_ == 0) FLAGS_caffe2_log_level = level_;
  }
  QuietAllocator(const QuietAllocator&) = delete;
  QuietAllocator& operator=(const QuietAllocator&) = delete;

 private:
  inline static std::mutex mutex_;
  inline static int count_ = 0;  // guarded by the mutex, as the next
  inline static int level_ = 0;
};

}  // namespace

struct MemoryRecorder::Impl {
  explicit Impl(std::optional<c10::Device> device)
      : counter(std::make_shared<Counter>(current_counter(), device)) {}

  QuietAllocator quiet;
  std::shared_ptr<Counter> counter;
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, counter};
};

MemoryRecorder::MemoryRecorder(std::optional<c10::Device> device)
    : impl_(std::make_unique<Impl>(device)) {}
MemoryRecorder::~MemoryRecorder() = default;

int64_t MemoryRecorder::current_bytes() const { return impl_->counter->current(); }
int64_t MemoryRecorder::peak_bytes() const { return impl_->counter->peak(); }
void MemoryRecorder::reset_peak() { impl_->counter->reset_peak(); }

}  // namespace rannc::ops
