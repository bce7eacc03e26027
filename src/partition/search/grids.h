#pragma once

#include <vector>

#include "partition/problem/search_space.h"
#include "partition/stages/stage_costs.h"
#include "rannc/cost/cluster.h"

namespace rannc::partition {

/// How the search may see the cluster: in how many columns, and which ranks move together. Never
/// empty.
[[nodiscard]] std::vector<Grid> grids(const cost::Cluster& cluster, const SearchSpace& space);

}  // namespace rannc::partition
