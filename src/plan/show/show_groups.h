#pragma once

#include <cstddef>
#include <string>

#include "rannc/plan/plan.h"

namespace rannc::plan {

/// Of stages whose layers groups of ranks compute together: mesh, factors, bytes of the
/// collectives, and what runs on whole values and why. Empty for a plan without groups.
[[nodiscard]] std::string group_table(const Plan& plan, size_t width);
/// The same of one stage, in words.
[[nodiscard]] std::string group_text(const Plan& plan, size_t stage, size_t width);

}  // namespace rannc::plan
