#pragma once

#include <cstdint>
#include <vector>

#include "rannc/plan/mesh.h"

namespace rannc::plan {

/// Rows [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};
[[nodiscard]] RowRange overlap(RowRange a, RowRange b);

/// `total` rows dealt to `parts` parts: sizes differ by at most one, and the larger parts start at
/// part `first` mod parts and go round. Passing the number of rows dealt before as `first` makes
/// the sums over several deals differ by at most one, too.
[[nodiscard]] std::vector<int64_t> deal(int64_t total, int64_t parts, int64_t first);

/// How the ranks' local batches form micro-batches: micro-batch k is the concatenation, in rank
/// order, of the k-th slice of every rank's local batch.
struct BatchSplit {
  std::vector<int64_t> local_rows;  ///< [rank]
  int64_t micro_batches = 1;
  std::vector<std::vector<RowRange>> slices;  ///< [rank][k], rows of the local batch
  std::vector<std::vector<RowRange>> places;  ///< [rank][k], where that slice lies in micro-batch k
  std::vector<int64_t> micro_rows;            ///< [k]
  [[nodiscard]] int64_t global_rows() const;
  friend bool operator==(const BatchSplit&, const BatchSplit&) = default;
};
/// A batch of fewer rows than `micro_batches` makes as many micro-batches of one row. Throws
/// PlanError when no rank has a row.
[[nodiscard]] BatchSplit split_batch(const std::vector<int64_t>& local_rows, int64_t micro_batches);

/// Rows of micro-batch k that each replica of a stage takes: [replica][k]. On a stage of all ranks
/// in ascending order a replica takes the slices of its own ranks, so pure data parallelism moves
/// no inputs. A range may be empty.
[[nodiscard]] std::vector<std::vector<RowRange>> shares(const BatchSplit& split,
                                                        const StageMesh& mesh);

/// For each of the rows `share` of micro-batch k, its number in the global batch, which is the
/// concatenation of the local batches in rank order.
[[nodiscard]] std::vector<int64_t> samples(const BatchSplit& split, int micro_batch,
                                           RowRange share);

}  // namespace rannc::plan
