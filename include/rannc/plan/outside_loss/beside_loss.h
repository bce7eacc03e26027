#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::plan {

/// An output with a gradient beside the loss.
struct BesideLoss {
  ir::ValueId output;
  std::string parameter;  ///< of which `output` is made and the loss is not; may be empty
};

/// The first of `outputs` with a gradient that suggests that the training loop makes the loss of
/// it: a parameter has no other way to get a gradient, or `loss` looks at no input, such as labels,
/// that the output is not made of.
[[nodiscard]] std::optional<BesideLoss> trained_beside(const ir::Graph& graph, ir::ValueId loss,
                                                       const std::vector<ir::ValueId>& outputs);

}  // namespace rannc::plan
