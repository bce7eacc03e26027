#pragma once

#include "rannc/plan/plan.h"

namespace rannc::plan {

/// The same nodes on the same ranks under fill-drain. The ranges of blocks that an interleaved plan
/// gives a group of ranks become one range, on ranks that may hold others' parameters.
[[nodiscard]] Plan fill_drain(const Plan& plan);

}  // namespace rannc::plan
