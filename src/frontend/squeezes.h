#pragma once

#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::frontend {

/// Makes `squeeze()` and `squeeze(dim)` say which dimensions of an operand with `dims` go: those
/// of one element in this trace. Else the dimension of the rows would go in a share of one row.
void name_squeezed(ir::Node& node, const std::vector<ir::AffineInt>& dims);

}  // namespace rannc::frontend
