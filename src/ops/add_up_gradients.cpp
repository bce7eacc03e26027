#include "rannc/ops/add_up_gradients.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <limits>
#include <utility>

#include "rannc/ops/make_node.h"
#include "rannc/ops/shares_memory.h"

namespace rannc::ops {
namespace {

using torch::autograd::variable_list;

// The engine runs it before all others that are ready, as it does torch's AccumulateGrad.
constexpr uint64_t kFirst = std::numeric_limits<uint64_t>::max();

bool is_strided(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided;
}

class AddUpGradients final : public torch::autograd::Node {
 public:
  AddUpGradients(const std::vector<at::Tensor>& tensors, std::vector<size_t> joined,
                 std::function<void(size_t)> added)
      : Node(kFirst), tensors_(tensors), joined_(std::move(joined)), added_(std::move(added)) {}

  std::string name() const override { return "AddUpGradients"; }

  at::Tensor& sum(size_t index) { return tensors_[joined_[index]].mutable_grad(); }

 private:
  variable_list apply(variable_list&& gradients) override {
    for (size_t index = 0; index < gradients.size(); ++index) {
      const at::Tensor gradient = std::move(gradients[index]);
      at::Tensor& sum = this->sum(index);
      if (gradient.defined() && is_strided(sum) && is_strided(gradient)) {
        // Where the sum lies in an array, accumulateGrad() would warn of its strides.
        sum.add_(gradient);
      } else if (gradient.defined()) {
        torch::autograd::AccumulateGrad::accumulateGrad(
            tensors_[joined_[index]], sum, gradient,
            /*num_expected_refs=*/shares_memory(gradient) ? 0 : 1,
            [&](at::Tensor&& updated) { sum = std::move(updated); });
      }
      if (added_ && sum.defined()) added_(joined_[index]);  // here, or by the operators: sum_at()
    }
    return {};
  }

  const std::vector<at::Tensor>& tensors_;  // they refer to this node, so it does not own them
  const std::vector<size_t> joined_;
  const std::function<void(size_t)> added_;
};

}  // namespace

at::Tensor* sum_at(const torch::autograd::Edge& edge) {
  if (auto* before = dynamic_cast<LeadsOn*>(edge.function.get())) {
    return sum_at(before->leads_to(edge.input_nr));
  }
  auto* node = dynamic_cast<AddUpGradients*>(edge.function.get());
  if (node == nullptr) return nullptr;
  at::Tensor& sum = node->sum(edge.input_nr);
  return is_strided(sum) ? &sum : nullptr;
}

void add_up_gradients(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& joined,
                      std::function<void(size_t)> added) {
  if (joined.empty()) return;
  const auto node = make_node<AddUpGradients>(tensors, joined, std::move(added));
  for (size_t index : joined) torch::autograd::set_history(tensors[index], node);
}

}  // namespace rannc::ops
