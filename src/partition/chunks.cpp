#include "partition/chunks.h"

#include <algorithm>
#include <numeric>

#include "partition/layout.h"

namespace rannc::partition {
namespace {

/// Ranges of at most `limit_ns` from the front, as few as possible but leaving a block for each of
/// `parts`; empty when they do not suffice.
std::vector<int> greedy(const RangeCosts::Table& table, int blocks, int parts, double limit_ns) {
  std::vector<int> starts;
  int first = 0;
  for (int part = 0; part < parts; ++part) {
    starts.push_back(first);
    const int latest = blocks - (parts - part - 1);
    int low = first + 1, high = latest;
    if (table.compute_ns(first, low) > limit_ns) return {};
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (table.compute_ns(first, middle) <= limit_ns) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    first = low;
  }
  return first == blocks ? starts : std::vector<int>{};
}

}  // namespace

std::vector<int> balanced_ranges(const RangeCosts::Table& table, int blocks, int parts) {
  double high = table.compute_ns(0, blocks), low = high / parts;
  std::vector<int> best = greedy(table, blocks, parts, high);
  for (int round = 0; round < 40 && high - low > 1e-9 * high; ++round) {
    const double middle = (low + high) / 2;
    std::vector<int> starts = greedy(table, blocks, parts, middle);
    if (starts.empty()) {
      low = middle;
    } else {
      high = middle;
      best = std::move(starts);
    }
  }
  return best;
}

void search_chunks(Assessor& assessor, const RangeCosts& ranges, const std::vector<uint32_t>& line,
                   const SearchSpace& space, Grid grid, Stop& stop, Best& best) {
  const cost::Cluster& cluster = assessor.cluster();
  const Request& request = assessor.request();
  const int blocks = ranges.blocks(), positions = cluster.ranks() / grid.step();
  for (int v = space.fewest_chunks; v <= space.most_chunks; ++v) {
    for (int p = 2; p <= positions && v * p <= blocks; ++p) {
      if (space.stages > 0 && space.stages != v * p) continue;
      for (const int64_t m : space.micro_batches) {
        if (m % p != 0) continue;
        if (stop.now()) return;
        int each = positions / p * grid.unit;
        const auto most =
            static_cast<int>(std::min<int64_t>(request.global_batch / m / grid.columns, each));
        each = space.one_replica ? std::min(most, 1) : most;
        if (each < 1 || (space.one_replica && grid.columns > 1)) continue;
        std::vector<int> counts(static_cast<size_t>(p), each);
        if (!space.replicas.empty()) {
          if (grid.columns > 1 || !replicas_repeat(space, p)) continue;
          counts.assign(space.replicas.begin(), space.replicas.begin() + p);
          if (std::accumulate(counts.begin(), counts.end(), 0) > cluster.ranks()) continue;
        }
        const int64_t micro_rows = (request.global_batch + m - 1) / m;
        const int64_t step = static_cast<int64_t>(counts.front()) * grid.columns;
        const RangeCosts::Table& table = ranges.at_rows((micro_rows + step - 1) / step);
        const double whole = table.compute_ns(0, blocks) / p * static_cast<double>(m);
        if (space.replicas.empty() && whole > best.iteration_ns()) continue;
        const std::vector<int> starts = balanced_ranges(table, blocks, v * p);
        Scored scored;
        scored.columns = grid.columns;
        scored.draft.schedule = plan::Schedule::interleaved;
        scored.draft.interleave = v;
        scored.draft.micro_batches = m;
        scored.draft.groups = lay_out(cluster, counts, grid.columns, 0);
        scored.draft.stage_of.resize(line.size());
        for (size_t k = 0; k < line.size(); ++k) {
          const auto behind = std::ranges::upper_bound(starts, static_cast<int>(k));
          scored.draft.stage_of[line[k]] = static_cast<int>(behind - starts.begin()) - 1;
        }
        if (!respects_pins(space, scored.draft)) continue;
        assessor.settle_recompute(scored.draft);
        scored.figures = assessor.assess(scored.draft);
        best.add(scored);
      }
    }
  }
}

}  // namespace rannc::partition
