#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "machine/memory.h"
#include "machine/queue.h"

namespace rannc::standin {

/// One device: its memory, its streams, and the first error of its kernels, after which it does
/// nothing any more.
class Device {
 public:
  Device(int index, int64_t memory_bytes, uint64_t seed, const std::atomic<double>& delay_us);

  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] Memory& memory() { return memory_; }
  /// `stream` is 0, or one of the pool's (`next_stream`).
  [[nodiscard]] Queue& queue(int64_t stream);
  /// The pool's streams in turn; half of them are of high priority, which their numbers say.
  [[nodiscard]] int64_t next_stream(bool high_priority);

  /// Whether anything has used it.
  [[nodiscard]] bool has_context() const { return context_; }
  void make_context() { context_ = true; }

  void fail(const std::string& what);
  [[nodiscard]] bool failed() const { return failed_; }
  /// Throws the error of an earlier kernel.
  void check() const;
  void forget_error();

  /// Reached when all work of all streams that was given so far is done.
  void drain();
  /// Ends the threads, after their work.
  void stop();

 private:
  static constexpr int64_t kPool = 32;  // of each priority, as CUDA's pools have
  const int index_;
  const uint64_t seed_;
  const std::atomic<double>& delay_us_;
  Memory memory_;
  mutable std::mutex mutex_;
  std::array<std::unique_ptr<Queue>, 1 + 2 * kPool> queues_;
  std::array<int64_t, 2> next_{};
  std::atomic<bool> context_ = false;
  std::atomic<bool> failed_ = false;
  std::string error_;
};

}  // namespace rannc::standin
