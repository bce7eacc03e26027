#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

#include "rannc/ir/graph.h"

namespace rannc::frontend {

/// Throws TraceError for a dtype that the IR does not hold (quantized, bits).
[[nodiscard]] ir::DType dtype_of(c10::ScalarType type);

/// A constant that is no tensor: None, a number, a string, a device or a list of numbers. Nothing
/// for anything else.
[[nodiscard]] std::optional<ir::Argument> literal_of(const c10::IValue& value);

/// The number in a tensor on the host without dimensions. Nothing for one with dimensions,
/// elsewhere, complex, or whose memory is not its own (a FakeTensor).
[[nodiscard]] std::optional<ir::Argument> number_of(const at::Tensor& tensor);

/// The number that a Python scalar became when it was passed where a tensor is expected: torch
/// marks it, because it takes no part in type promotion. Nothing for every other tensor.
[[nodiscard]] std::optional<ir::Argument> wrapped_number(const at::Tensor& tensor);

}  // namespace rannc::frontend
