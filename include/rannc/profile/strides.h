#pragma once

#include <cstdint>
#include <vector>

namespace rannc::profile {

/// [node][operand]: strides in elements; empty where they are not known.
using OperandStrides = std::vector<std::vector<std::vector<int64_t>>>;

/// Strides on the line through those at `low_rows` and at `high_rows`; empty when one is not known
/// or the line misses the whole numbers at `rows`.
[[nodiscard]] std::vector<int64_t> strides_at(const std::vector<int64_t>& low, int64_t low_rows,
                                              const std::vector<int64_t>& high, int64_t high_rows,
                                              int64_t rows);

}  // namespace rannc::profile
