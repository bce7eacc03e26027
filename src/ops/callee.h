#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <memory>

#include "rannc/ir/graph.h"
#include "rannc/ops/objects.h"

namespace rannc::ops {

/// What a node calls.
class Callee {
 public:
  virtual ~Callee() = default;

  /// Null: it takes the node's tensor operands and nothing else.
  [[nodiscard]] virtual const c10::FunctionSchema* schema() const = 0;

  /// Replaces the arguments on the stack by the results. The caller does not hold the GIL.
  virtual void call(torch::jit::Stack& stack) = 0;
};

/// Throws TraceError naming the node when there is no such operator or object.
[[nodiscard]] std::unique_ptr<Callee> resolve(const ir::Node& node, const Objects& objects);

}  // namespace rannc::ops
