#pragma once

#include <string>
#include <vector>

#include "plan/show/notes.h"
#include "rannc/plan/plan.h"

namespace rannc::plan {

/// What a stage holds, as its notes say it; else its first and last node, and how many there are.
[[nodiscard]] std::string stage_name(const Plan& plan, size_t stage, const StageNotes& notes);

/// "[8, 4 x 2, 1]": equal neighbours counted.
[[nodiscard]] std::string folded(const std::vector<int64_t>& numbers);

}  // namespace rannc::plan
