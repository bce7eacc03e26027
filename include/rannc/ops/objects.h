#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace rannc::ops {

/// The torch objects that ir::ObjectId refers to, by index: tensor constants, and Python objects
/// (a torch.jit.ScriptFunction, or a callable that takes the node's tensor operands and returns a
/// tensor or a tuple of tensors).
using Objects = std::vector<c10::IValue>;

}  // namespace rannc::ops
