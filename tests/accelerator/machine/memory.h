#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace rannc::standin {

/// The memory of one device: a file that is mapped twice. Tensors hold addresses of the first
/// mapping, which nobody may read or write, so that a host which does is stopped at once; kernels
/// use the second mapping.
class Memory {
 public:
  /// `bytes` are an upper limit: pages are taken when they are first written.
  explicit Memory(int64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] bool holds(const void* address) const;
  /// Where kernels find what tensors call `address`; only for addresses that this memory holds.
  [[nodiscard]] void* for_kernels(const void* address) const;

  /// A range of at least `bytes`, a multiple of a page. Null: no free range is so long.
  [[nodiscard]] void* take(int64_t bytes);
  /// Its pages go back to the machine.
  void give_back(void* address, int64_t bytes);
  [[nodiscard]] int64_t free_bytes() const;

 private:
  int64_t bytes_;
  char* for_tensors_ = nullptr;
  char* for_kernels_ = nullptr;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset to length; neighbours are joined
};

}  // namespace rannc::standin
