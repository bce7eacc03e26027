#pragma once

#include <cstddef>
#include <vector>

#include "partition/problem/draft.h"
#include "rannc/cost/cluster.h"

namespace rannc::partition {

// A draft whose groups lie behind each other in each of `columns` equal parts of the cluster: their
// order, the "line", in which the number of groups stands for the idle ranks.

/// The groups in the order of their ranks.
[[nodiscard]] std::vector<size_t> line_of(const Draft& draft);

/// Ranks of each group in a column.
[[nodiscard]] std::vector<int> counts_of(const Draft& draft, int columns);

/// Gives the draft groups of these sizes, along the line. They have to fit into a column.
void place(Draft& draft, const cost::Cluster& cluster, const std::vector<int>& counts,
           const std::vector<size_t>& line, int columns);

}  // namespace rannc::partition
