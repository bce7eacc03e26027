#include "rannc/cost/accumulation.h"

namespace rannc::cost {

GraphProfile with_accumulation(GraphProfile profile, double ns_per_byte) {
  for (ProfileNode& node : profile.nodes) {
    if (node.adds_in_place) continue;
    double bytes = 0;
    for (const uint32_t param : node.params) {
      if (profile.params[param].trainable) bytes += profile.params[param].bytes;
    }
    for (double& ns : node.backward_ns) ns += bytes * ns_per_byte;
  }
  return profile;
}

}  // namespace rannc::cost
