#include "machine/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <system_error>

namespace rannc::standin {
namespace {

void* map(int file, int64_t bytes, int protection) {
  void* address = mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_SHARED | MAP_NORESERVE,
                       file, /*offset=*/0);
  if (address == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "memory of a stand-in device");
  }
  return address;
}

}  // namespace

Memory::Memory(int64_t bytes) : bytes_(bytes) {
  const int file = memfd_create("standin", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, bytes) != 0) {
    throw std::system_error(errno, std::generic_category(), "memory of a stand-in device");
  }
  for_tensors_ = static_cast<char*>(map(file, bytes, PROT_NONE));
  for_kernels_ = static_cast<char*>(map(file, bytes, PROT_READ | PROT_WRITE));
  close(file);  // the mappings keep it
  free_[0] = bytes;
}

Memory::~Memory() {
  munmap(for_tensors_, static_cast<size_t>(bytes_));
  munmap(for_kernels_, static_cast<size_t>(bytes_));
}

bool Memory::holds(const void* address) const {
  const char* at = static_cast<const char*>(address);
  return at >= for_tensors_ && at < for_tensors_ + bytes_;
}

void* Memory::for_kernels(const void* address) const {
  return for_kernels_ + (static_cast<const char*>(address) - for_tensors_);
}

void* Memory::take(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < bytes) continue;
    free_.erase(range);
    if (length > bytes) free_[offset + bytes] = length - bytes;
    return for_tensors_ + offset;
  }
  return nullptr;
}

void Memory::give_back(void* address, int64_t bytes) {
  const int64_t offset = static_cast<char*>(address) - for_tensors_;
  madvise(for_kernels_ + offset, static_cast<size_t>(bytes), MADV_REMOVE);
  const std::lock_guard lock(mutex_);
  auto range = free_.emplace(offset, bytes).first;
  const auto next = std::next(range);
  if (next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  const auto before = std::prev(range);
  if (before->first + before->second != range->first) return;
  before->second += range->second;
  free_.erase(range);
}

int64_t Memory::free_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const auto& [offset, length] : free_) sum += length;
  return sum;
}

}  // namespace rannc::standin
