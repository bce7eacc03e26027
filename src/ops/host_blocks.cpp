#include "rannc/ops/host_blocks.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>

namespace rannc::ops {
namespace {

constexpr size_t kAlignment = 64;  // as torch's own, for vector instructions and cache lines

/// The block of malloc that a tensor's memory lies in is noted before that memory.
void*& block_of(void* memory) { return static_cast<void**>(memory)[-1]; }

class HostBlocks final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device host(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, host};
    void* block = std::malloc(bytes + sizeof(void*) + kAlignment);
    if (block == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ",
                  bytes, " bytes.");
    }
    const auto first = reinterpret_cast<uintptr_t>(block) + sizeof(void*);
    auto* memory = reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
    block_of(memory) = block;
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, &free_block, host};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free_block(void* memory) {
    if (memory == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(memory);
    std::free(block_of(memory));
  }
};

}  // namespace

bool reuse_freed_blocks() {
  static auto* const blocks = new HostBlocks;  // tensors may outlive everything else
  if (c10::GetCPUAllocator() == blocks) return true;
  if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return false;
  c10::SetCPUAllocator(blocks);
  return true;
}

}  // namespace rannc::ops
