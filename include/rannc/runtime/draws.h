#pragma once

#include <cstdint>
#include <vector>

namespace rannc::runtime {

/// What deterministic random numbers of a call are told from. Whoever calls the executors counts.
struct DrawSteps {
  uint64_t seed = 0;
  int64_t step = 0;
};

/// The same for one share of a micro-batch.
struct DrawKey {
  DrawSteps steps;
  std::vector<int64_t> samples;  ///< for each row its number in the global batch
};

}  // namespace rannc::runtime
