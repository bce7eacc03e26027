#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace rannc::standin_nccl {

/// The stand-in accelerator of this process (tests/accelerator), found among its libraries.
class Device {
 public:
  /// Of the calling thread. Throws when the process has no stand-in accelerator.
  static Device& current();

  [[nodiscard]] int index() const { return index_; }
  /// After what `stream`, which it is known by natively, was given before.
  void give(void* stream, std::function<void()> work) const;
  /// Where the device finds what tensors call `address`; null: it has no such memory.
  [[nodiscard]] void* find(const void* address) const;
  /// Memory beside that of tensors; null: there is none.
  [[nodiscard]] void* take(int64_t bytes) const;
  void give_back(void* address, int64_t bytes) const;

  // Calls of this device, in the order in which they are issued.
  int64_t next_ticket() { return issued_++; }
  [[nodiscard]] int64_t ended() const { return ended_; }
  void end_one() { ++ended_; }

 private:
  explicit Device(int index) : index_(index) {}
  const int index_;
  std::atomic<int64_t> issued_ = 0;
  std::atomic<int64_t> ended_ = 0;
};

}  // namespace rannc::standin_nccl
