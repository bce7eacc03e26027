#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace rannc::frontend {

/// The schema of the operator that a traced node calls; null when there is none. The tracer writes
/// the argument of `mask == False` as a bool, which torch's own search does not take for a Scalar.
[[nodiscard]] const c10::FunctionSchema* schema_of(const torch::jit::Node& node);

}  // namespace rannc::frontend
