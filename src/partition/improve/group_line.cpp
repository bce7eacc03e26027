#include "partition/improve/group_line.h"

#include <algorithm>
#include <numeric>

#include "partition/score/lay_out.h"

namespace rannc::partition {

std::vector<size_t> line_of(const Draft& draft) {
  std::vector<size_t> line(draft.groups.size());
  std::iota(line.begin(), line.end(), size_t{0});
  std::ranges::stable_sort(line, {}, [&](size_t g) { return draft.groups[g].front().first; });
  const bool idle_first = draft.groups[line.front()].front().first > 0;
  line.insert(idle_first ? line.begin() : line.end(), draft.groups.size());
  return line;
}

std::vector<int> counts_of(const Draft& draft, int columns) {
  std::vector<int> result;
  for (const Ranks& ranks : draft.groups) result.push_back(size(ranks) / columns);
  return result;
}

void place(Draft& draft, const cost::Cluster& cluster, const std::vector<int>& counts,
           const std::vector<size_t>& line, int columns) {
  const int width = cluster.ranks() / columns;
  const int idle = width - std::accumulate(counts.begin(), counts.end(), 0);
  std::vector<int> in_line;
  for (const size_t group : line) in_line.push_back(group < counts.size() ? counts[group] : idle);
  const std::vector<Ranks> ranks = lay_out(cluster, in_line, columns, 0);
  draft.groups.assign(counts.size(), {});
  for (size_t k = 0; k < line.size(); ++k) {
    if (line[k] < counts.size()) draft.groups[line[k]] = ranks[k];
  }
}

}  // namespace rannc::partition
