#pragma once

#include <cstddef>
#include <optional>

namespace rannc::rannc_plan {

/// Columns of the terminal that the standard output is; 80 when it is none.
[[nodiscard]] size_t terminal_width();

/// Columns of the terminal that a file is; none when it is none, or does not say.
[[nodiscard]] std::optional<size_t> columns_of(int file);

}  // namespace rannc::rannc_plan
