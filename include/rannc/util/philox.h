#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace rannc {

/// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
/// (2011): four random words that depend on counter and key alone, not on what was drawn before.
[[nodiscard]] std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key);

/// A key of its own for each pair of numbers.
[[nodiscard]] uint64_t derive_key(uint64_t key, uint64_t first, uint64_t second);

/// Four words at a time become philox({low b, high b, low row, high row}, {low key, high key}),
/// with b = first_block and on.
void fill_random(uint64_t key, uint64_t row, uint64_t first_block, std::span<uint32_t> words);

}  // namespace rannc
