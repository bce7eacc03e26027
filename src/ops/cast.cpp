#include "rannc/ops/cast.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <limits>
#include <utility>

#include "rannc/ops/add_up_gradients.h"
#include "rannc/ops/make_node.h"

namespace rannc::ops {
namespace {

using torch::autograd::variable_list;

/// It keeps nothing, so it may run in any number of backwards.
class SharedCastBackward final : public torch::autograd::Node {
 public:
  // The engine runs it before all others that are ready. torch's own node would be one of the first
  // pass, and so come last in the backwards of the others, which would hold all gradients until
  // then.
  SharedCastBackward(const at::Tensor& source, bool only_use)
      : Node(std::numeric_limits<uint64_t>::max()),
        options_(source.options()),
        only_use_(only_use) {}

  std::string name() const override { return "SharedCastBackward"; }

 private:
  variable_list apply(variable_list&& gradients) override {
    const at::Tensor gradient = std::move(gradients[0]);
    if (!gradient.defined()) return variable_list(1);
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor* sum = only_use_ ? sum_at(next_edge(0)) : nullptr;
    if (sum != nullptr && gradient.layout() == at::kStrided && widens(gradient, *sum)) {
      sum->add_(gradient);  // widens it by itself
      return variable_list(1);
    }
    return {gradient.to(options_.device(), c10::typeMetaToScalarType(options_.dtype()))};
  }

  static bool widens(const at::Tensor& gradient, const at::Tensor& sum) {
    return gradient.device() == sum.device() &&
           c10::promoteTypes(gradient.scalar_type(), sum.scalar_type()) == sum.scalar_type();
  }

  const at::TensorOptions options_;
  const bool only_use_;
};

}  // namespace

void record_shared_cast(const at::Tensor& source, at::Tensor& result, bool only_use) {
  if (!source.requires_grad() || result.is_same(source)) return;
  const auto node = make_node<SharedCastBackward>(source, only_use);
  node->set_next_edges(torch::autograd::collect_next_edges(source));
  torch::autograd::set_history(result, node);
}

}  // namespace rannc::ops
