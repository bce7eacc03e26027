#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ops/objects.h"

namespace rannc::ops {

/// One node of a graph, resolved and ready to be called any number of times from one thread.
///
/// Registered operators are called boxed through the dispatcher, so autograd records them as in
/// eager mode; scripted functions run in the TorchScript interpreter; Python functions take the
/// GIL themselves. A number given where the schema wants a tensor becomes a wrapped number, so
/// type promotion equals eager's. `ir::Device` literals become `device`,
/// but for those of the host.
class Operator {
 public:
  /// Throws TraceError naming node, module and source line when the operator is not registered or
  /// its arguments do not fit the schema.
  Operator(const ir::Graph& graph, ir::NodeId node, const Objects& objects, c10::Device device);
  ~Operator();
  Operator(Operator&&) noexcept;
  Operator& operator=(Operator&&) noexcept;

  /// Sets the literals that depend on the rows; cheap when `rows` is what it was.
  void set_rows(int64_t rows);

  /// Calls the operator on `operands` (graph.operands(node), in order; moved from, so that a last
  /// use frees its tensor) and writes the results to `results` (node.outputs, in order; undefined
  /// where an output is invalid). The caller sets grad mode and must not hold the GIL.
  /// An error from torch is rethrown as rannc::Error with node, module and source line added.
  void call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rannc::ops
