#include "partition/blocks/movable_parts.h"

#include <algorithm>

namespace rannc::partition {

bool branches(const BlockModel& model) {
  for (uint32_t block = 0; block + 1 < model.blocks(); ++block) {
    const std::vector<uint32_t>& after = model.after(block);
    if (std::ranges::find(after, block + 1) == after.end()) return true;
  }
  return false;
}

std::vector<uint32_t> part_of(const BlockModel& model, const std::vector<int>& stage_of,
                              uint32_t block, bool later) {
  std::vector<uint32_t> part{block};
  for (size_t k = 0; k < part.size(); ++k) {
    for (const uint32_t next : later ? model.after(part[k]) : model.before(part[k])) {
      if (stage_of[next] != stage_of[block]) continue;
      if (std::ranges::find(part, next) == part.end()) part.push_back(next);
    }
  }
  return part;
}

MoveRange range_of_part(const BlockModel& model, const std::vector<int>& stage_of,
                        const std::vector<uint32_t>& part, bool later) {
  const int from = stage_of[part.front()];
  MoveRange range{0, from - 1};
  if (later) range = {from + 1, *std::ranges::max_element(stage_of)};
  for (const uint32_t member : part) {
    for (const uint32_t next : later ? model.after(member) : model.before(member)) {
      const int stage = stage_of[next];
      if (stage == from) continue;
      if (later) {
        range.last = std::min(range.last, stage);
      } else {
        range.first = std::max(range.first, stage);
      }
    }
  }
  return range;
}

MoveRange range_of_stage(const BlockModel& model, const std::vector<int>& stage_of, int stage,
                         int stages) {
  MoveRange range{0, stages - 1};
  for (uint32_t block = 0; block < stage_of.size(); ++block) {
    if (stage_of[block] != stage) continue;
    for (const uint32_t next : model.before(block)) {
      if (stage_of[next] != stage) range.first = std::max(range.first, stage_of[next] + 1);
    }
    for (const uint32_t next : model.after(block)) {
      if (stage_of[next] != stage) range.last = std::min(range.last, stage_of[next] - 1);
    }
  }
  return range;
}

int renumbered(int stage, int from, int to) {
  if (stage == from) return to;
  if (from < stage && stage <= to) return stage - 1;
  if (to <= stage && stage < from) return stage + 1;
  return stage;
}

}  // namespace rannc::partition
