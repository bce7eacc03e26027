#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ir/segments.h"
#include "rannc/ops/add_up_gradients.h"
#include "rannc/runtime/interpreter.h"
#include "runtime/stage/sync_batch_norm.h"

// Segments of a stage run once without anything kept but what they take, and again, recorded by
// autograd, before their backward.
namespace rannc::runtime {

/// Where autograd's graph of a pass begins: it takes the gradients of what the pass has taken.
/// Leaves in its place would keep that memory until the backward.
class InputGradients final : public ops::LeadsOn {
 public:
  /// `edges`: where they go afterwards; may be empty.
  explicit InputGradients(std::shared_ptr<std::vector<at::Tensor>> found,
                          torch::autograd::edge_list edges = {});
  std::string name() const override { return "InputGradients"; }
  [[nodiscard]] torch::autograd::Edge leads_to(uint32_t input) const override;

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  std::shared_ptr<std::vector<at::Tensor>> found_;
  torch::autograd::edge_list edges_;
};

/// What all runs of a pass have in common, and what its backward at hand gives them.
struct PassContext {
  int64_t rows = 0;
  std::shared_ptr<const DrawKey> key;
  std::shared_ptr<WholeBatch> batch;
  // While a backward runs:
  const std::vector<at::Tensor>* state = nullptr;
  PerCall* per_call = nullptr;
  ParameterGathers* gathers = nullptr;
  bool keep_graph = false;
};

/// Makes a node of autograd of each segment that a run comes to.
class SecondRuns final : public SegmentRecorder {
 public:
  SecondRuns(const ir::Graph& graph, const std::vector<ir::Segment>& segments,
             Interpreter& interpreter, c10::Device device, std::shared_ptr<PassContext> context);

  void enter(size_t segment, std::vector<at::Tensor> inputs,
             const std::vector<at::Tensor>& state) override;
  void leave(size_t segment, std::vector<at::Tensor>& outputs) override;

 private:
  const ir::Graph& graph_;
  const std::vector<ir::Segment>& segments_;
  Interpreter& interpreter_;
  c10::Device device_;
  std::shared_ptr<PassContext> context_;
  decltype(torch::autograd::Edge::function) node_;  ///< of the segment that runs
};

/// A copy of a parameter or buffer whose gradient, if it takes one, is that of the original.
[[nodiscard]] at::Tensor copy_of_state(const at::Tensor& tensor);

}  // namespace rannc::runtime
