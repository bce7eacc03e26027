#pragma once

#include <string>

#include "rannc/ir/graph.h"

namespace rannc::ops {

/// "node 'layers.0.add_1' (aten::add.Tensor in module 'layers.0', model.py:12)".
[[nodiscard]] std::string place(const ir::Node& node);

}  // namespace rannc::ops
