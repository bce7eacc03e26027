#pragma once

#include <ATen/core/function_schema.h>

#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::frontend {

/// The arguments that an operator writes although its schema does not say so: the running
/// statistics of the normalisations, in training.
[[nodiscard]] std::vector<size_t> written_buffers(const c10::FunctionSchema& schema,
                                                  const std::vector<ir::Argument>& arguments);

}  // namespace rannc::frontend
