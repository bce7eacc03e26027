#include "partition/score/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace rannc::partition {
namespace {

/// Numbers of replicas with different shares, the smallest of each: more would not be faster, and
/// cost more time of ranks.
std::vector<int> useful_replicas(int64_t micro_rows, int most) {
  std::vector<int> result;
  int64_t before = -1;
  for (int replicas = 1; replicas <= most; ++replicas) {
    const int64_t rows = (micro_rows + replicas - 1) / replicas;
    if (rows != before) result.push_back(replicas);
    before = rows;
  }
  return result;
}

}  // namespace

namespace {

/// Of one clock alone, the device's or the host's: no stage takes less than its sum by either.
double bound_ns(const cost::GraphProfile& profile, const BlockCosts& costs,
                const cost::Cluster& cluster, const Request& request, const SearchSpace& space,
                std::vector<double> BlockCosts::AtRows::*forward_ns,
                std::vector<double> BlockCosts::AtRows::*backward_ns) {
  const size_t count = profile.nodes.size();
  const double extra = request.recompute == Recompute::always ? 2.0 : 1.0;
  double best = std::numeric_limits<double>::infinity();
  for (const int64_t m : space.micro_batches) {
    const int64_t micro_rows = (request.global_batch + m - 1) / m;
    int most = static_cast<int>(std::min<int64_t>(cluster.ranks(), request.global_batch / m));
    if (space.one_replica) most = std::min(most, 1);
    if (most < 1) continue;
    std::vector<double> least(count, std::numeric_limits<double>::infinity());
    std::vector<double> forward(count, least[0]), backward(count, least[0]);
    for (const int replicas : useful_replicas(micro_rows, most)) {
      const BlockCosts::AtRows& at = costs.at((micro_rows + replicas - 1) / replicas);
      const std::vector<double>& ahead = at.*forward_ns;
      for (size_t node = 0; node < count; ++node) {
        const double back = (at.*backward_ns)[node] + (extra - 1) * ahead[node];
        least[node] = std::min(least[node], replicas * (ahead[node] + back));
        forward[node] = std::min(forward[node], ahead[node]);
        backward[node] = std::min(backward[node], back);
      }
    }
    // Work of a host of speed 1; no way through the graph is faster than the fastest host.
    double work = 0;
    for (const double ns : least) work += ns;
    double speeds = 0;
    for (int rank = 0; rank < cluster.ranks(); ++rank) {
      speeds += cluster.speed_of(cluster.host_of(rank));
    }
    // Longest paths: to a node (both directions are walked on the way back), and through it.
    std::vector<double> way(count, 0.0), home(count, 0.0);
    std::vector<double> heaviest(count, 0.0);  // least work on a path that ends with the node
    double longest = 0, path = 0;
    for (size_t node = 0; node < count; ++node) {
      for (const cost::ProfileUse& use : profile.nodes[node].inputs) {
        if (use.is_input) continue;
        way[node] = std::max(way[node], way[use.node] + forward[use.node]);
        if (!profile.nodes[use.node].outputs[use.output].grad) continue;
        heaviest[node] = std::max(heaviest[node], heaviest[use.node]);
        home[node] = std::max(home[node], home[use.node] + backward[use.node]);
      }
      heaviest[node] += least[node];
      path = std::max(path, heaviest[node]);
      longest = std::max(longest, way[node] + home[node] +
                                      static_cast<double>(m) * (forward[node] + backward[node]));
    }
    const double ramp =
        space.interleaves()
            ? 0.0
            : path / (most * (1 - std::pow(1 - 1 / static_cast<double>(m),
                                           static_cast<double>(cluster.ranks()) / most)));
    best = std::min(best, std::max({static_cast<double>(m) * work / speeds,
                                    longest / cluster.fastest(), ramp / cluster.fastest()}));
  }
  return best;
}

}  // namespace

double lower_bound_ns(const cost::GraphProfile& profile, const BlockCosts& costs,
                      const cost::Cluster& cluster, const Request& request,
                      const SearchSpace& space) {
  const double device = bound_ns(profile, costs, cluster, request, space,
                                 &BlockCosts::AtRows::forward_ns, &BlockCosts::AtRows::backward_ns);
  if (!profile.has_host_times()) return device;
  return std::max(device, bound_ns(profile, costs, cluster, request, space,
                                   &BlockCosts::AtRows::forward_host_ns,
                                   &BlockCosts::AtRows::backward_host_ns));
}

}  // namespace rannc::partition
