#pragma once

#include <string>

#include "rannc/plan/program.h"

namespace rannc::plan {

/// "rows of value 3 of micro-batch 0, from stage 0 on rank 1 to the user on rank 2". Requires that
/// it is one of the Program's.
[[nodiscard]] std::string describe(const Program& program, const Communication& communication);

}  // namespace rannc::plan
