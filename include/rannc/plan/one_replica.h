#pragma once

#include "rannc/plan/plan.h"

namespace rannc::plan {

/// The same nodes with the whole batch at once: one micro-batch on the first replica of each stage,
/// under fill-drain. The ranges of blocks that an interleaved plan gives a group of ranks become
/// ranges in a row, on ranks that may hold others' parameters.
[[nodiscard]] Plan on_one_replica(const Plan& plan);

}  // namespace rannc::plan
