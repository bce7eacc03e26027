#include "rannc/util/philox.h"

#include <algorithm>
#include <cstddef>

namespace rannc {
namespace {

constexpr int kRounds = 10;
constexpr uint32_t kMultiply0 = 0xD2511F53;
constexpr uint32_t kMultiply1 = 0xCD9E8D57;
constexpr uint32_t kBump0 = 0x9E3779B9;
constexpr uint32_t kBump1 = 0xBB67AE85;

/// As many blocks side by side as make the compiler use vector instructions.
constexpr size_t kLanes = 8;
constexpr size_t kWords = 4;

uint32_t low(uint64_t number) { return static_cast<uint32_t>(number); }
uint32_t high(uint64_t number) { return static_cast<uint32_t>(number >> 32); }

/// `lanes[i][l]`: word i of block l.
struct Lanes {
  std::array<std::array<uint32_t, kLanes>, kWords> words;
};

void run_rounds(Lanes& lanes, uint32_t key0, uint32_t key1) {
  auto& [x] = lanes;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t product0 = uint64_t{kMultiply0} * x[0][lane];
      const uint64_t product1 = uint64_t{kMultiply1} * x[2][lane];
      x[0][lane] = high(product1) ^ x[1][lane] ^ key0;
      x[2][lane] = high(product0) ^ x[3][lane] ^ key1;
      x[1][lane] = low(product1);
      x[3][lane] = low(product0);
    }
    key0 += kBump0;
    key1 += kBump1;
  }
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  Lanes lanes{};
  for (size_t word = 0; word < kWords; ++word) lanes.words[word][0] = counter[word];
  run_rounds(lanes, key[0], key[1]);
  for (size_t word = 0; word < kWords; ++word) counter[word] = lanes.words[word][0];
  return counter;
}

uint64_t derive_key(uint64_t key, uint64_t first, uint64_t second) {
  const auto words =
      philox({low(first), high(first), low(second), high(second)}, {low(key), high(key)});
  return words[0] | uint64_t{words[1]} << 32;
}

void fill_random(uint64_t key, uint64_t row, uint64_t first_block, std::span<uint32_t> words) {
  for (size_t begin = 0; begin < words.size(); begin += kWords * kLanes) {
    Lanes lanes;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t block = first_block + begin / kWords + lane;
      lanes.words[0][lane] = low(block);
      lanes.words[1][lane] = high(block);
      lanes.words[2][lane] = low(row);
      lanes.words[3][lane] = high(row);
    }
    run_rounds(lanes, low(key), high(key));
    const size_t count = std::min(words.size() - begin, kWords * kLanes);
    for (size_t at = 0; at < count; ++at) {
      words[begin + at] = lanes.words[at % kWords][at / kWords];
    }
  }
}

}  // namespace rannc
