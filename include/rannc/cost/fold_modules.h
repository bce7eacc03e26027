#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"

namespace rannc::cost {

/// For reading, and for planners at layer granularity: the operators of one call of one module as
/// one node, which bears the module's path. The path of a node is its name up to the last dot;
/// `depth` > 0 cuts paths to so many components, so that modules below fold into their callers.
///
/// A node of the result is a run of consecutive nodes with one path, so the result is in
/// topological order, too; a module whose operators are not consecutive (because it calls others
/// in between) gives several: "layers.3", "layers.3_1". Costs and saved bytes are the sums,
/// parameters and groups the unions, outputs those that other nodes read, or the results of the
/// model. A plan of the result costs what the same plan of the operators costs. O(nodes + uses).
[[nodiscard]] GraphProfile fold_modules(const GraphProfile& profile, int depth = 0);

/// The nodes from `begins[k]` on and before `begins[k + 1]` as one, which bears the name of the
/// first of them. `begins` rise from 0 on.
[[nodiscard]] GraphProfile fold_runs(const GraphProfile& profile,
                                     const std::vector<uint32_t>& begins);

}  // namespace rannc::cost
