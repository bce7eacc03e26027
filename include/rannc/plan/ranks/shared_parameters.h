#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/plan.h"

namespace rannc::plan {

/// Rows of its first dimension that each of so many replicas keeps of a parameter; the last one may
/// have fewer.
[[nodiscard]] int64_t rows_of_replica(int64_t rows, size_t replicas);

/// Lets the replicas of each stage share its parameters (ZeRO, stage 3): Stage::shared are those of
/// which each replica then keeps a part, along the first dimension. Others stay whole: those with
/// too few rows for all replicas, those that several stages use or some node writes, and `except`.
[[nodiscard]] Plan share_parameters(Plan plan, const ir::Graph& graph,
                                    const std::vector<std::string>& except = {});

/// The same plan without that.
[[nodiscard]] Plan without_shared_parameters(Plan plan);

}  // namespace rannc::plan
