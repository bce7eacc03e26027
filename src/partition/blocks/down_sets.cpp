#include "partition/blocks/down_sets.h"

#include <unordered_set>

namespace rannc::partition {

std::vector<BlockSet> down_sets(const BlockModel& model, size_t most) {
  const size_t blocks = model.blocks();
  if (blocks > kMostSetBlocks) return {};
  std::vector<BlockSet> needs(blocks);
  for (size_t block = 0; block < blocks; ++block) {
    for (const uint32_t before : model.before(block)) needs[block].set(before);
  }
  // Sets are found in the order of their sizes: each has one block more than the one it is made of.
  std::vector<BlockSet> sets{{}};
  std::unordered_set<BlockSet> known;
  for (size_t k = 0; k < sets.size(); ++k) {
    for (size_t block = 0; block < blocks; ++block) {
      if (sets[k].test(block) || (needs[block] & ~sets[k]).any()) continue;
      BlockSet next = sets[k];
      next.set(block);
      if (!known.insert(next).second) continue;
      if (sets.size() == most) return {};
      sets.push_back(next);
    }
  }
  return sets;
}

}  // namespace rannc::partition
