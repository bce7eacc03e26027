#pragma once

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// An argument of a call; None where trailing ones are left out.
[[nodiscard]] inline const Argument& argument(const Node& node, size_t index) {
  static const Argument kAbsent = None{};
  return index < node.inputs.size() ? node.inputs[index] : kAbsent;
}

}  // namespace rannc::ir
