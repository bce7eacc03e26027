#include "ops/linear.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

#include "rannc/ops/add_up_gradients.h"
#include "rannc/ops/make_node.h"

namespace rannc::ops {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// [..., k] to [n, k], as linear itself does.
at::Tensor rows_of(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.flatten(0, -2);
}

/// Edges: input, weight, bias.
struct LinearBackward final : torch::autograd::Node {
  variable_list apply(variable_list&& grads) override {
    variable_list result(3);
    if (!grads[0].defined()) return result;
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor grad = rows_of(grads[0]);
    if (task_should_compute_output(0)) {
      result[0] = grad.mm(weight.unpack());
      if (grads[0].dim() != 2) {
        std::vector<int64_t> sizes = grads[0].sizes().vec();
        sizes.back() = result[0].size(1);
        result[0] = result[0].view(sizes);
      }
    }
    if (task_should_compute_output(1)) {
      const at::Tensor rows = rows_of(input.unpack());
      if (at::Tensor* sum = sum_at(next_edge(1))) {
        sum->addmm_(grad.t(), rows);
      } else {
        result[1] = grad.t().mm(rows);
      }
    }
    if (task_should_compute_output(2)) result[2] = grad.sum(0);
    return result;
  }

  void release_variables() override {
    input.reset_data();
    weight.reset_data();
  }

  SavedVariable input;
  SavedVariable weight;
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type()) &&
         !tensor.is_meta() && !at::isTensorSubclassLike(tensor);
}

}  // namespace

bool adds_weight_gradients(const torch::autograd::Node* node) {
  return dynamic_cast<const LinearBackward*>(node) != nullptr;
}

bool call_linear(torch::jit::Stack& stack) {
  const at::Tensor& input = stack[0].toTensor();
  const at::Tensor& weight = stack[1].toTensor();
  const auto bias = stack[2].toOptional<at::Tensor>();
  if (!torch::autograd::compute_requires_grad(input, weight, bias)) return false;
  if (input.dim() < 2 || !input.is_contiguous() || weight.dim() != 2) return false;
  if (!is_plain(input) || !is_plain(weight) || (bias && !is_plain(*bias))) return false;

  const auto node = make_node<LinearBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
  if (weight.requires_grad()) node->input = SavedVariable(input, /*is_output=*/false);
  if (input.requires_grad()) node->weight = SavedVariable(weight, /*is_output=*/false);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = at::linear(input, weight, bias);
  }
  torch::autograd::set_history(result, node);
  stack.clear();
  stack.push_back(std::move(result));
  return true;
}

}  // namespace rannc::ops
