#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::frontend {

/// What a front end makes of a model: a graph, and the torch objects that it refers to by
/// ir::ObjectId (see ops/objects.h).
struct Capture {
  ir::Graph graph;
  std::vector<c10::IValue> objects;
};

/// One trace at one batch size, before sizes are compared: the same graph with every size fixed.
struct Trace {
  int64_t rows = 0;
  Capture capture;
};

/// Joins traces of one model at different numbers of rows into one batch-size-generic capture: a
/// dimension or an integer that differs becomes fixed + per_row * rows. Throws TraceError naming
/// module path and source line when the structure differs, when an integer is not affine in the
/// rows over all traces, or when a float or a constant tensor depends on the batch size.
/// Requires at least two traces of different `rows`. The graph verifies, holds no dead nodes, and
/// its rows are inferred.
[[nodiscard]] Capture join(const std::vector<Trace>& traces);

}  // namespace rannc::frontend
