#pragma once

#include "rannc/cost/graph_profile.h"

namespace rannc::cost {

/// Whether the node's backward adds to the sum of its weight's gradients by itself: that takes no
/// longer than to write a gradient, and no memory for one.
[[nodiscard]] bool adds_in_place(const ProfileNode& node);

/// `profile` whose backwards also add the gradients of their trainable parameters to those of the
/// micro-batches before. Of m micro-batches m - 1 do; here all of them pay.
[[nodiscard]] GraphProfile with_accumulation(GraphProfile profile, double ns_per_byte);

}  // namespace rannc::cost
