#include "rannc/profile/strides.h"

#include <cstddef>

namespace rannc::profile {

std::vector<int64_t> strides_at(const std::vector<int64_t>& low, int64_t low_rows,
                                const std::vector<int64_t>& high, int64_t high_rows, int64_t rows) {
  if (low.size() != high.size()) return {};
  if (low_rows == high_rows) return low;
  std::vector<int64_t> strides;
  for (size_t i = 0; i < low.size(); ++i) {
    const int64_t rise = (high[i] - low[i]) * (rows - low_rows);
    const int64_t run = high_rows - low_rows;
    const int64_t stride = low[i] + rise / run;
    if (rise % run != 0 || stride < 0) return {};
    strides.push_back(stride);
  }
  return strides;
}

}  // namespace rannc::profile
