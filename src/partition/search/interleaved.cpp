#include "partition/search/interleaved.h"

#include <algorithm>
#include <numeric>

#include "partition/score/lay_out.h"

namespace rannc::partition {
namespace {

/// Where the range of each part may end (exclusive): behind every block pinned to it or to an
/// earlier part, before every block pinned to a later one, with a block left for each part.
struct Ends {
  Ends(const SearchSpace& space, const std::vector<uint32_t>& line, size_t parts)
      : earliest(parts, 1), latest(parts, static_cast<int>(line.size())) {
    earliest.back() = latest.back();
    for (size_t k = 0; k < line.size() && !space.pins.empty(); ++k) {
      const int pin = space.pins[line[k]];
      if (pin == SearchSpace::kFree) continue;
      const size_t stage = pin == SearchSpace::kLastStage ? parts - 1 : static_cast<size_t>(pin);
      for (size_t part = 0; part < parts; ++part) {
        if (part < stage) {
          latest[part] = std::min(latest[part], static_cast<int>(k));
        } else {
          earliest[part] = std::max(earliest[part], static_cast<int>(k) + 1);
        }
      }
    }
    for (size_t part = parts - 1; part-- > 0;) {
      latest[part] = std::min(latest[part], latest[part + 1] - 1);
    }
  }

  std::vector<int> earliest, latest;  // [part]
};

/// First positions of ranges of at most `limit_ns`, each as long as it may be, from the front;
/// empty when they do not reach the end. No other ranges within the limit end further behind, so
/// a later range never needs more than here.
std::vector<int> greedy(const RangeCosts::Table& table, const Ends& ends, double limit_ns) {
  std::vector<int> starts;
  int first = 0;
  for (size_t part = 0; part < ends.latest.size(); ++part) {
    starts.push_back(first);
    int low = std::max(ends.earliest[part], first + 1), high = ends.latest[part];
    if (low > high || table.compute_ns(first, low) > limit_ns) return {};
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
  return starts;
}

/// First positions of ranges of the line, none empty, whose longest lasts as short as it can:
/// forward and backward of `table`. Empty when pins contradict the order of the line.
std::vector<int> balanced_ranges(const RangeCosts::Table& table, int blocks, const Ends& ends) {
  const auto parts = static_cast<double>(ends.latest.size());
  double high = table.compute_ns(0, blocks), low = high / parts;
  std::vector<int> best = greedy(table, ends, high);
  for (int round = 0; round < 40 && high - low > 1e-9 * high && !best.empty(); ++round) {
    const double middle = (low + high) / 2;
    std::vector<int> starts = greedy(table, ends, middle);
    if (starts.empty()) {
      low = middle;
    } else {
      high = middle;
      best = std::move(starts);
    }
  }
  return best;
}

}  // namespace

void search_chunks(Assessor& assessor, const RangeCosts& ranges, const std::vector<uint32_t>& line,
                   const SearchSpace& space, Grid grid, Stop& stop, Best& best) {
  const cost::Cluster& cluster = assessor.cluster();
  const Request& request = assessor.request();
  const int blocks = ranges.blocks(), positions = cluster.ranks() / grid.step();
  for (int v = space.fewest_chunks; v <= space.most_chunks; ++v) {
    for (int p = 2; p <= positions && v * p <= blocks; ++p) {
      if (space.stages > 0 && space.stages != v * p) continue;
      const Ends ends(space, line, static_cast<size_t>(v) * p);
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
        const double whole =
            table.compute_ns(0, blocks) / cluster.fastest() / p * static_cast<double>(m);
        if (space.replicas.empty() && whole > best.iteration_ns()) continue;
        const std::vector<int> starts = balanced_ranges(table, blocks, ends);
        if (starts.empty()) continue;
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
        assessor.choose_recompute(scored.draft);
        scored.figures = assessor.assess(scored.draft);
        best.add(scored);
      }
    }
  }
}

}  // namespace rannc::partition
