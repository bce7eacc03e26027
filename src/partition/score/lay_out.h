#pragma once

#include <vector>

#include "partition/problem/draft.h"
#include "rannc/cost/cluster.h"

namespace rannc::partition {

/// Ranks of groups with `counts` ranks in each of `columns` equal parts of the cluster, one group
/// behind the other, from the column's rank `first` on.
[[nodiscard]] std::vector<Ranks> lay_out(const cost::Cluster& cluster,
                                         const std::vector<int>& counts, int columns, int first);

/// The numbers of columns that are worth a look: one, and the divisors of the number of hosts (at
/// most `most` of them, spread evenly when there are more).
[[nodiscard]] std::vector<int> column_choices(const cost::Cluster& cluster, size_t most);

}  // namespace rannc::partition
