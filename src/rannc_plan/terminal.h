#pragma once

#include <cstddef>

namespace rannc::rannc_plan {

/// Columns of the terminal that the standard output is; 110 when it is none.
[[nodiscard]] size_t terminal_width();

}  // namespace rannc::rannc_plan
