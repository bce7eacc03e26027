#pragma once

namespace rannc::plan {

/// A rank posts a receive while this many computations lie before its use, so that a message moves
/// during the computation before, and only one micro-batch more than needed takes memory. The
/// runtime does so, and predictions of a step's memory count it.
inline constexpr int kComputationsAhead = 2;

}  // namespace rannc::plan
