#include "partition/search/grids.h"

#include <algorithm>

#include "partition/score/lay_out.h"

namespace rannc::partition {
namespace {

/// Ranks (or units of ranks) of a column that the closed form tells apart; the second where memory
/// demands many stages.
/// tuned by: `planner_bench` (4,096 ranks).
/// without it: the time of planning grows with the square of the ranks: 4,096 of them would take
/// hours.
constexpr int kMostPositions = 64;
constexpr int kMostPositionsEver = 512;

/// Layouts of the cluster that are tried: the divisors of the number of hosts, spread evenly when
/// there are more.
/// tuned by: `planner_bench`.
/// without it: a cluster of 720 hosts has 30 layouts, each of which is searched.
constexpr size_t kMostColumnChoices = 8;

}  // namespace

std::vector<Grid> grids(const cost::Cluster& cluster, const SearchSpace& space) {
  if (!space.replicas.empty() || space.one_replica) return {{1, 1}};
  const int positions = std::clamp(3 * space.fewest_stages, kMostPositions, kMostPositionsEver);
  std::vector<Grid> result;
  for (const int columns : column_choices(cluster, kMostColumnChoices)) {
    const int width = cluster.ranks() / columns;
    if (width < space.fewest_stages) continue;
    int unit = (width + positions - 1) / positions;
    while (width % unit != 0) ++unit;
    result.push_back({columns, unit});
    // Finer, so that a model that needs few ranks is not given many.
    if (unit > 1 && columns == 1) result.push_back({columns, std::max(1, unit / 4)});
  }
  if (result.empty()) result.push_back({1, 1});
  return result;
}

}  // namespace rannc::partition
