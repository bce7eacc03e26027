#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rannc/frontend/capture.h"

namespace rannc::frontend {

/// What the tracer's graph does not say about a node.
struct NodeFacts {
  std::string module;
  ir::SourceLine source;
  bool grad_enabled = true;
  /// The results, lists flattened, kept alive so that no two storages have one address.
  std::vector<at::Tensor> outputs;
  /// Operands that an object's call wrote in place; for registered operators the schema tells.
  std::vector<at::Tensor> written;
  /// Set when the results were seen before autograd marked them.
  std::optional<bool> requires_grad;
};

struct StartValue {
  torch::jit::Value* value = nullptr;
  ir::ValueKind kind = ir::ValueKind::input;
  std::vector<std::string> names;  ///< the first is the name, the others are aliases
  std::optional<int> batch_dim;
  at::Tensor tensor;
};

/// The kinds of node that this library adds to the tracer's graph. The attribute says which of
/// Recording::calls they are; torch's own nodes of custom autograd functions have it, too.
inline constexpr const char* kCallIndex = "rannc_call";
inline constexpr const char* kPythonNode = "rannc::python";
inline constexpr const char* kScriptedNode = "rannc::scripted";
struct ObjectCall {
  std::string op;
  c10::IValue object;
};

/// A finished trace, before conversion.
struct Recording {
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<StartValue> starts;
  std::vector<torch::jit::Value*> outputs;
  std::unordered_map<const torch::jit::Node*, NodeFacts> facts;
  std::vector<ObjectCall> calls;
  std::unordered_map<const c10::TensorImpl*, std::string> constant_names;
  /// Tensors that stand for a constant, by the value of that constant: their storage is the one
  /// that results of in-place operators share.
  std::unordered_map<const torch::jit::Value*, at::Tensor> stand_ins;
  /// What tensors of one element hold in every call, where torch has read it.
  std::unordered_map<const torch::jit::Value*, c10::IValue> numbers;
};

/// The trace as a graph with fixed sizes. Throws TraceError with module path and source line.
[[nodiscard]] Trace convert(const Recording& recording, const std::string& name, int64_t rows);

/// "layers.0.attn (model.py:12)", the place that errors name.
[[nodiscard]] std::string place(const std::string& module, const ir::SourceLine& source);

}  // namespace rannc::frontend
