#pragma once

#include "rannc/cost/graph_profile.h"

namespace rannc::cost {

/// `profile` whose backwards also add the gradients of their trainable parameters to those of the
/// micro-batches before. Of m micro-batches m - 1 do; here all of them pay.
[[nodiscard]] GraphProfile with_accumulation(GraphProfile profile, double ns_per_byte);

}  // namespace rannc::cost
