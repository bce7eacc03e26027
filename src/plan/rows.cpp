#include "rannc/plan/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "rannc/util/error.h"

namespace rannc::plan {

RowRange overlap(RowRange a, RowRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::vector<int64_t> deal(int64_t total, int64_t parts, int64_t first) {
  RANNC_CHECK(total >= 0 && parts >= 1 && first >= 0,
              fmt::format("{} rows to {} parts from part {}", total, parts, first));
  std::vector<int64_t> sizes(static_cast<size_t>(parts), total / parts);
  for (int64_t extra = 0; extra < total % parts; ++extra) {
    ++sizes[static_cast<size_t>((first + extra) % parts)];
  }
  return sizes;
}

int64_t BatchSplit::global_rows() const {
  return std::accumulate(local_rows.begin(), local_rows.end(), int64_t{0});
}

BatchSplit split_batch(const std::vector<int64_t>& local_rows, int64_t micro_batches) {
  BatchSplit split;
  split.local_rows = local_rows;
  const int64_t global_rows = split.global_rows();
  if (global_rows < 1) {
    throw PlanError(fmt::format("the batch has no rows on any of {} ranks, so nothing can run",
                                local_rows.size()));
  }
  RANNC_CHECK(micro_batches >= 1, fmt::format("{} micro-batches", micro_batches));
  micro_batches = std::min(micro_batches, global_rows);
  split.micro_batches = micro_batches;

  split.micro_rows.assign(static_cast<size_t>(micro_batches), 0);
  int64_t rows_before = 0;
  for (int64_t rows : local_rows) {
    std::vector<RowRange>& slices = split.slices.emplace_back();
    std::vector<RowRange>& places = split.places.emplace_back();
    int64_t begin = 0;
    // Starting where the rank before stopped keeps micro-batches equal to within one row, too.
    const std::vector<int64_t> sizes = deal(rows, micro_batches, rows_before);
    for (size_t k = 0; k < sizes.size(); ++k) {
      slices.push_back({begin, begin + sizes[k]});
      places.push_back({split.micro_rows[k], split.micro_rows[k] + sizes[k]});
      begin += sizes[k];
      split.micro_rows[k] += sizes[k];
    }
    rows_before += rows;
  }
  return split;
}

std::vector<std::vector<RowRange>> shares(const BatchSplit& split, const StageMesh& mesh) {
  std::vector<std::vector<RowRange>> shares(static_cast<size_t>(mesh.replicas()));
  std::vector<Rank> all(split.local_rows.size());
  std::iota(all.begin(), all.end(), 0);
  if (std::ranges::equal(mesh.ranks(), all)) {
    for (int replica = 0; replica < mesh.replicas(); ++replica) {
      const std::span<const Rank> ranks = mesh.ranks_of_replica(replica);
      std::vector<RowRange>& share = shares[static_cast<size_t>(replica)];
      share = split.places[static_cast<size_t>(ranks.front())];
      const std::vector<RowRange>& last = split.places[static_cast<size_t>(ranks.back())];
      for (size_t k = 0; k < share.size(); ++k) share[k].end = last[k].end;
    }
    return shares;
  }

  int64_t rows_before = 0;
  for (int64_t micro_rows : split.micro_rows) {
    int64_t begin = 0;
    const auto sizes = deal(micro_rows, mesh.replicas(), rows_before);
    for (size_t replica = 0; replica < sizes.size(); ++replica) {
      shares[replica].push_back({begin, begin + sizes[replica]});
      begin += sizes[replica];
    }
    rows_before += micro_rows;
  }
  return shares;
}

std::vector<int64_t> samples(const BatchSplit& split, int micro_batch, RowRange share) {
  const auto k = static_cast<size_t>(micro_batch);
  std::vector<int64_t> numbers;
  int64_t rows_before = 0;  // of the ranks before
  for (size_t rank = 0; rank < split.local_rows.size(); ++rank) {
    const RowRange place = split.places[rank][k];
    const RowRange own = overlap(place, share);
    for (int64_t row = own.begin; row < own.end; ++row) {
      numbers.push_back(rows_before + split.slices[rank][k].begin + row - place.begin);
    }
    rows_before += split.local_rows[rank];
  }
  return numbers;
}

}  // namespace rannc::plan
