#include "partition/improve/move_blocks.h"

#include <algorithm>
#include <vector>

namespace rannc::partition {

bool can_move(const BlockModel& model, const Draft& draft, uint32_t block, int to) {
  const int from = draft.stage_of[block];
  for (const uint32_t next : to > from ? model.after(block) : model.before(block)) {
    const int stage = draft.stage_of[next];
    if (to > from ? stage < to : stage > to) return false;
  }
  return true;
}

bool shift(const BlockModel& model, Draft& draft, int from, int to, int count) {
  std::vector<uint32_t> members;
  for (uint32_t block = 0; block < draft.stage_of.size(); ++block) {
    if (draft.stage_of[block] == from) members.push_back(block);
  }
  if (static_cast<int>(members.size()) <= count) return false;
  if (to > from) std::ranges::reverse(members);
  int moved = 0;
  for (const uint32_t block : members) {
    if (!can_move(model, draft, block, to)) continue;
    draft.stage_of[block] = to;
    if (++moved == count) return true;
  }
  return false;
}

}  // namespace rannc::partition
