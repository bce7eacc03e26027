#pragma once

#include <cstdint>

namespace rannc::plan {

/// Gradients are copied together up to this size before they are summed over ranks: large enough to
/// hide the latency of a message, small enough that the copy does not matter for the peak of
/// memory. The runtime does so, and predictions of a step count it.
inline constexpr int64_t kReductionBytes = int64_t{1} << 20;

}  // namespace rannc::plan
