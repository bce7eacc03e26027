#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ops {

/// The arguments of one node, with every literal converted once to what the schema wants.
class Arguments {
 public:
  /// `schema` null: the node's tensor operands and nothing else. Throws TraceError naming the node
  /// and the argument that does not fit.
  Arguments(const ir::Node& node, const c10::FunctionSchema* schema, c10::Device device);

  /// Rewrites the literals that depend on the rows.
  void set_rows(int64_t rows);

  /// Appends the arguments; operands are moved from.
  void push(std::span<at::Tensor> operands, torch::jit::Stack& stack) const;

 private:
  struct Slot {
    enum class Kind { literal, tensor, tensors, optional_tensors };
    Kind kind = Kind::literal;
    c10::IValue value;          ///< literal only
    std::vector<bool> present;  ///< lists only: whether the element is an operand or None
  };
  struct SizedLiteral {
    size_t slot;
    c10::TypePtr type;
    std::optional<int32_t> length;
    ir::Argument literal;
  };

  [[nodiscard]] Slot make_slot(const ir::Argument& argument, const c10::Argument& wanted);

  std::vector<Slot> slots_;
  std::vector<SizedLiteral> sized_;
  c10::Device device_;
  int64_t rows_ = 1;
};

}  // namespace rannc::ops
