#pragma once

#include <cstdint>
#include <vector>

namespace rannc::predict {

/// A tensor's memory that autograd keeps for the backward of `nodes`. The profile charges it to the
/// first of them; a stage that holds only later ones keeps it, too.
struct SavedStorage {
  std::vector<uint32_t> nodes;  ///< of the graph, ascending
  std::vector<double> bytes;    ///< at the profile's rows
};

}  // namespace rannc::predict
