#pragma once

#include "rannc/plan/plan.h"

namespace rannc::plan {

/// The same plan, in which no stage runs its forward again; predictions stay as they were.
[[nodiscard]] Plan without_recompute(Plan plan);

}  // namespace rannc::plan
