#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace rannc::standin {

/// Autocast for `op`, which the CPU's autocast treats, too: it casts here what it casts there.
void cast(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace rannc::standin
