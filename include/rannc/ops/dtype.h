#pragma once

#include <c10/core/ScalarType.h>

#include "rannc/ir/types.h"

namespace rannc::ops {

[[nodiscard]] c10::ScalarType to_torch(ir::DType dtype);
/// Throws TraceError for a dtype that the IR does not hold (quantized, bits).
[[nodiscard]] ir::DType from_torch(c10::ScalarType type);

}  // namespace rannc::ops
