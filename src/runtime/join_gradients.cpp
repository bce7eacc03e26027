#include "runtime/join_gradients.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "rannc/ops/make_node.h"

namespace rannc::runtime {
namespace {

using torch::autograd::variable_list;

class AccumulateGrads final : public torch::autograd::Node {
 public:
  AccumulateGrads(const std::vector<at::Tensor>& tensors, std::vector<size_t> joined)
      : tensors_(tensors), joined_(std::move(joined)) {}

  std::string name() const override { return "AccumulateGrads"; }

 private:
  variable_list apply(variable_list&& gradients) override {
    for (size_t index = 0; index < gradients.size(); ++index) {
      const at::Tensor gradient = std::move(gradients[index]);
      if (!gradient.defined()) continue;
      const at::Tensor& tensor = tensors_[joined_[index]];
      at::Tensor& sum = tensor.mutable_grad();
      torch::autograd::AccumulateGrad::accumulateGrad(
          tensor, sum, gradient, /*num_expected_refs=*/1,
          [&](at::Tensor&& updated) { sum = std::move(updated); });
    }
    return {};
  }

  const std::vector<at::Tensor>& tensors_;  // they refer to this node, so it does not own them
  const std::vector<size_t> joined_;
};

}  // namespace

void join_gradients(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& joined) {
  if (joined.empty()) return;
  const auto node = ops::make_node<AccumulateGrads>(tensors, joined);
  for (size_t index : joined) torch::autograd::set_history(tensors[index], node);
}

}  // namespace rannc::runtime
