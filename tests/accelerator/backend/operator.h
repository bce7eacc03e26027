#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace rannc::standin {

/// The kernel of almost every operator. The meta kernel says at once what comes out; the CPU's
/// kernel runs later, on the current stream. Operators whose results' sizes depend on values, or
/// that give numbers to the host, wait.
void issue(const c10::OperatorHandle& op, torch::jit::Stack* stack);

[[nodiscard]] c10::OperatorHandle operator_named(const char* name, const char* overload = "");

}  // namespace rannc::standin
