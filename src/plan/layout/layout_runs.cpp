#include "plan/layout/layout_runs.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace rannc::plan {
namespace {

/// Numbers [begin, end) of a box, counted row-major within it; they lie at `target` of an array.
void add_box(std::vector<Run>& runs, const std::vector<int64_t>& shape, const Box& box,
             int64_t begin, int64_t end, int64_t target) {
  // The dimensions from `outer` on lie together: behind `outer` the box has all of the tensor.
  int64_t length = 1;
  size_t outer = shape.size();
  while (outer > 0) {
    --outer;
    length *= box.size[outer];
    if (box.size[outer] != shape[outer]) break;
  }
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  int64_t corner = 0;
  for (size_t d = 0; d < shape.size(); ++d) corner += box.begin[d] * strides[d];

  for (int64_t at = begin; at < end;) {
    const int64_t inside = at % length;
    const int64_t count = std::min(length - inside, end - at);
    int64_t place = corner + inside;
    int64_t line = at / length;
    for (size_t d = outer; d-- > 0;) {
      place += line % box.size[d] * strides[d];
      line /= box.size[d];
    }
    add_run(runs, {place, target + at - begin, count});
    at += count;
  }
}

}  // namespace

void add_run(std::vector<Run>& runs, Run run) {
  if (!runs.empty()) {
    Run& last = runs.back();
    if (last.from + last.count == run.from && last.to + last.count == run.to) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

std::vector<Run> runs_of(const std::vector<int64_t>& shape, const Part& part) {
  std::vector<Run> runs;
  const int64_t first = part.range ? part.range->first : 0;
  const int64_t last = first + part.numel();
  int64_t before = 0;  // numbers of the boxes before
  for (const Box& box : part.boxes) {
    const int64_t behind = before + box.numel();
    const int64_t begin = std::max(first, before), end = std::min(last, behind);
    if (begin < end) add_box(runs, shape, box, begin - before, end - before, begin - first);
    before = behind;
  }
  return runs;
}

std::vector<Run> runs_by_place(const std::vector<int64_t>& shape, const Part& part) {
  std::vector<Run> runs = runs_of(shape, part);
  std::ranges::sort(runs, {}, &Run::from);
  return runs;
}

Cover::Cover(const Layout& layout) {
  std::vector<std::tuple<int64_t, size_t, bool>> borders;  // place, part, whether it begins
  for (size_t part = 0; part < layout.parts().size(); ++part) {
    runs_.push_back(runs_by_place(layout.shape(), layout.parts()[part].part));
    for (const Run& run : runs_.back()) {
      borders.emplace_back(run.from, part, true);
      borders.emplace_back(run.from + run.count, part, false);
    }
  }
  // At one place parts end before they begin again.
  std::ranges::sort(borders, {}, [](const auto& border) {
    return std::tuple(std::get<0>(border), std::get<2>(border), std::get<1>(border));
  });

  std::map<std::vector<size_t>, size_t> known;
  std::vector<size_t> here;
  int64_t begin = 0;
  for (const auto& [place, part, begins] : borders) {
    if (place > begin && !here.empty()) {
      const auto [found, is_new] = known.try_emplace(here, sets.size());
      if (is_new) sets.push_back({here, {}});
      segments.push_back({begin, place, found->second});
    }
    begin = place;
    const auto at = std::ranges::lower_bound(here, part);
    begins ? (void)here.insert(at, part) : (void)here.erase(at);
  }
  for (Set& set : sets) {
    for (const size_t part : set.parts) {
      const std::vector<Rank>& ranks = layout.parts()[part].ranks;
      set.ranks.insert(set.ranks.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(set.ranks);
  }
}

std::vector<Cover::Segment>::const_iterator Cover::first_behind(int64_t number) const {
  return std::ranges::upper_bound(segments, number, {}, &Segment::end);
}

bool Cover::holds(size_t set, size_t part) const {
  return std::ranges::binary_search(sets[set].parts, part);
}

int64_t Cover::place_in(size_t part, int64_t number) const {
  const auto behind = std::ranges::upper_bound(runs_[part], number, {}, &Run::from);
  const Run& run = *std::prev(behind);
  return run.to + number - run.from;
}

}  // namespace rannc::plan
