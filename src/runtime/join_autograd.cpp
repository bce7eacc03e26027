#include "rannc/runtime/join_autograd.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "rannc/ops/make_node.h"
#include "rannc/util/error.h"

namespace rannc::runtime {
namespace {

using torch::autograd::variable_list;

class PipelineStep final : public torch::autograd::Node {
 public:
  PipelineStep(std::shared_ptr<Call> call, AroundBackward around)
      : call_(std::move(call)), around_(std::move(around)) {}

  std::string name() const override { return "PipelineStep"; }

 private:
  variable_list apply(variable_list&& output_grads) override {
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    std::vector<at::Tensor> gradients;
    around_(output_grads, keep_graph, [&](bool keep, int64_t outputs) {
      gradients = call_->backward(std::move(output_grads), keep,
                                  {.outputs = outputs, .parameters = accumulating()});
    });
    RANNC_CHECK(gradients.size() == num_outputs(), c10::str(gradients.size()));
    return gradients;
  }

  /// [what the call is made from]: whether this backward adds to its `.grad`; empty: to all.
  [[nodiscard]] std::vector<bool> accumulating() const {
    const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
    if (wanted == nullptr || wanted->empty()) return {};
    std::vector<bool> found;
    for (const torch::autograd::Edge& edge : next_edges()) {
      const auto one = wanted->find(edge.function.get());
      found.push_back(one != wanted->end() && one->second.needed_);
    }
    return found;
  }

  std::shared_ptr<Call> call_;
  AroundBackward around_;
};

}  // namespace

std::vector<at::Tensor> join_autograd(std::shared_ptr<Call> call,
                                      const std::vector<at::Tensor>& leaves,
                                      const std::vector<bool>& differentiable,
                                      AroundBackward around) {
  const std::vector<at::Tensor>& found = call->outputs();
  RANNC_CHECK(found.size() == differentiable.size(), c10::str(differentiable.size()));
  const auto node = ops::make_node<PipelineStep>(call, std::move(around));
  node->set_next_edges(torch::autograd::collect_next_edges(leaves));
  std::vector<at::Tensor> outputs;
  for (size_t index = 0; index < found.size(); ++index) {
    const bool joins = found[index].defined() && differentiable[index];
    outputs.push_back(found[index].defined() ? found[index].detach() : at::Tensor());
    torch::autograd::set_history(joins ? outputs.back() : at::Tensor(), node);
  }
  return outputs;
}

}  // namespace rannc::runtime
