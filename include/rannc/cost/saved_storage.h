#pragma once

#include <cstdint>
#include <vector>

namespace rannc::cost {

/// A tensor's memory that autograd keeps for the backward of `nodes`. A stage that has any of them
/// holds it, once, until the backward of the first one that it has.
struct SavedStorage {
  std::vector<uint32_t> nodes;  ///< of a graph, or of its profile; ascending
  std::vector<double> bytes;    ///< at the profile's rows
  friend bool operator==(const SavedStorage&, const SavedStorage&) = default;
};

}  // namespace rannc::cost
