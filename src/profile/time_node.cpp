#include "profile/time_node.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>

#include "profile/operands.h"
#include "rannc/ops/memory.h"
#include "rannc/ops/operator.h"

namespace rannc::profile {
namespace {

using Clock = std::chrono::steady_clock;
using torch::autograd::variable_list;

constexpr int64_t kLongCall_ns = 200'000'000;

struct Sample {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
};

class Timer {
 public:
  Timer(const ir::Graph& graph, ir::NodeId node, const ops::Objects& objects, int64_t rows,
        c10::Device device, const at::Generator& generator)
      : node_(graph[node]),
        device_(device),
        operator_(graph, node, objects, device),
        leaves_(random_operands(graph, node, rows, device, generator)) {
    operator_.set_rows(rows);
    for (ir::ValueId operand : graph.operands(node)) {
      written_.push_back(std::ranges::find(node_.writes, operand) != node_.writes.end());
    }
    for (const at::Tensor& leaf : leaves_) {
      const bool repeated = std::ranges::any_of(
          wanted_, [&](const at::Tensor& other) { return other.is_same(leaf); });
      if (leaf.requires_grad() && !repeated) wanted_.push_back(leaf);
    }
  }

  /// One forward and, where a gradient flows, one backward. `workspace_bytes`: null to count none.
  Sample run(int64_t* workspace_bytes) {
    const c10::AutoGradMode grad_mode(node_.grad_enabled);
    std::vector<at::Tensor> operands = leaves_;
    // Writing to a leaf that requires a gradient is an error, and every call starts from the same
    // data: writes go to copies.
    for (size_t i = 0; i < operands.size(); ++i) {
      if (written_[i]) operands[i] = operands[i].clone();
    }
    Sample sample;
    std::vector<at::Tensor> results;
    sample.forward_ns = timed(workspace_bytes, 0, [&] { operator_.call(operands, results); });
    backward(results, workspace_bytes, sample);
    return sample;
  }

 private:
  void backward(const std::vector<at::Tensor>& results, int64_t* workspace_bytes, Sample& sample) {
    variable_list outputs, gradients;
    int64_t incoming = 0;
    for (const at::Tensor& result : results) {
      if (!result.defined() || !result.requires_grad()) continue;
      outputs.push_back(result);
      gradients.push_back(at::ones_like(result));
      incoming += static_cast<int64_t>(gradients.back().nbytes());
    }
    if (outputs.empty() || wanted_.empty()) return;
    variable_list found;  // kept, as the gradients that go out count
    sample.backward_ns = timed(workspace_bytes, incoming, [&] {
      found = torch::autograd::grad(outputs, wanted_, gradients, /*retain_graph=*/false,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    });
  }

  /// The forward's results remain allocated and are no temporaries; of the backward everything is.
  template <class Call>
  int64_t timed(int64_t* workspace_bytes, int64_t incoming_bytes, Call call) {
    if (workspace_bytes == nullptr) return elapsed_ns(call);
    const ops::MemoryRecorder counter;
    const int64_t ns = elapsed_ns(call);
    const int64_t kept = incoming_bytes > 0 ? 0 : std::max<int64_t>(counter.current_bytes(), 0);
    const int64_t peak = std::max<int64_t>(counter.peak_bytes() - kept, 0) + incoming_bytes;
    *workspace_bytes = std::max(*workspace_bytes, peak);
    return ns;
  }

  template <class Call>
  int64_t elapsed_ns(Call& call) const {
    synchronize();
    const auto begin = Clock::now();
    call();
    synchronize();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  }

  void synchronize() const {
    if (device_.is_cpu()) return;
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }

  const ir::Node& node_;
  c10::Device device_;
  ops::Operator operator_;
  std::vector<at::Tensor> leaves_;
  std::vector<bool> written_;  // [operand]
  variable_list wanted_;       // leaves that require a gradient, each once
};

int64_t median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

cost::NodeCost time_node(const ir::Graph& graph, ir::NodeId node, const ops::Objects& objects,
                         int64_t rows, const MeasureOptions& options, at::Generator generator) {
  Timer timer(graph, node, objects, rows, options.device, generator);
  cost::NodeCost cost;
  const Sample first = timer.run(&cost.workspace_bytes);
  std::vector<int64_t> forward, backward;
  const bool is_long = first.forward_ns + first.backward_ns > kLongCall_ns;
  for (int i = 0; i < options.repeats && !is_long; ++i) {
    const Sample sample = timer.run(nullptr);
    forward.push_back(sample.forward_ns);
    backward.push_back(sample.backward_ns);
  }
  cost.forward_ns = forward.empty() ? first.forward_ns : median(forward);
  cost.backward_ns = backward.empty() ? first.backward_ns : median(backward);
  return cost;
}

}  // namespace rannc::profile
