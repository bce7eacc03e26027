#include "partition/score/lay_out.h"

#include "rannc/util/error.h"

namespace rannc::partition {

std::vector<Ranks> lay_out(const cost::Cluster& cluster, const std::vector<int>& counts,
                           int columns, int first) {
  const int width = cluster.ranks() / columns;
  std::vector<Ranks> groups;
  for (const int count : counts) {
    RANNC_CHECK(first + count <= width, "the ranks do not suffice");
    Ranks& ranks = groups.emplace_back();
    for (int column = 0; column < columns; ++column) {
      const Segment next{column * width + first, count};
      if (!ranks.empty() && ranks.back().first + ranks.back().count == next.first) {
        ranks.back().count += count;
      } else {
        ranks.push_back(next);
      }
    }
    first += count;
  }
  return groups;
}

std::vector<int> column_choices(const cost::Cluster& cluster, size_t most) {
  if (!cluster.host_of_rank.empty()) return {1};  // hosts are no columns of equal widths
  std::vector<int> divisors;
  for (int columns = 1; columns <= cluster.hosts; ++columns) {
    if (cluster.hosts % columns == 0) divisors.push_back(columns);
  }
  if (divisors.size() <= most) return divisors;
  std::vector<int> chosen;
  for (size_t k = 0; k < most; ++k) {
    const int columns = divisors[k * (divisors.size() - 1) / (most - 1)];
    if (chosen.empty() || chosen.back() != columns) chosen.push_back(columns);
  }
  return chosen;
}

}  // namespace rannc::partition
