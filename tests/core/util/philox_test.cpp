#include "rannc/util/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace rannc {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers of Random123 1.14, file kat_vectors, "philox4x32 10".
TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // The digits of pi.
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(FillRandom, GivesTheBlocksInOrderWhateverTheLength) {
  const uint64_t key = 0x299f31d0a4093822;
  const uint64_t row = 0x0370734413198a2e;
  for (size_t length : {1, 4, 31, 32, 33, 101}) {
    std::vector<uint32_t> words(length);
    fill_random(key, row, /*first_block=*/3, words);
    for (size_t at = 0; at < length; ++at) {
      const auto block = static_cast<uint32_t>(3 + at / 4);
      const Words expected = philox({block, 0, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
      EXPECT_EQ(words[at], expected[at % 4]) << "word " << at << " of " << length;
    }
  }
}

TEST(DeriveKey, DependsOnEachNumber) {
  const uint64_t key = derive_key(1, 2, 3);
  EXPECT_EQ(key, derive_key(1, 2, 3));
  for (uint64_t other : {derive_key(2, 2, 3), derive_key(1, 3, 3), derive_key(1, 2, 4),
                         derive_key(1, 3, 2), derive_key(1, 2, uint64_t{3} << 32)}) {
    EXPECT_NE(key, other);
  }
}

}  // namespace
}  // namespace rannc
