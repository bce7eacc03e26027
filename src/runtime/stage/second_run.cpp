#include "runtime/stage/second_run.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "rannc/ops/make_node.h"
#include "rannc/util/error.h"
#include "runtime/stage/random_state.h"

namespace rannc::runtime {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

// The engine runs it before all others that are ready, as it does torch's AccumulateGrad.
InputGradients::InputGradients(std::shared_ptr<std::vector<at::Tensor>> found, edge_list edges)
    : LeadsOn(std::numeric_limits<uint64_t>::max()),
      found_(std::move(found)),
      edges_(std::move(edges)) {}

Edge InputGradients::leads_to(uint32_t input) const {
  return input < edges_.size() ? edges_[input] : Edge();
}

variable_list InputGradients::apply(variable_list&& gradients) {
  *found_ = std::move(gradients);
  return {};
}

at::Tensor copy_of_state(const at::Tensor& tensor) {
  at::Tensor copy = tensor.detach().clone();
  if (tensor.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(copy, torch::autograd::impl::gradient_edge(tensor));
  }
  return copy;
}

namespace {

/// Buffers up to this size are copied for the backward, as another call may write them before it:
/// counters and averages are no larger.
/// tuned by: what separates counters and averages of channels from masks and tables.
/// without it: a larger limit copies masks and tables at every call; a smaller one lets a second
/// forward change the statistics that a backward reads.
constexpr size_t kCopiedStateBytes = size_t{16} << 10;

uint32_t version_of(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
}

Edge edge_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                                    : Edge();
}

/// Autograd records again in this scope, whatever a backward has left out.
c10::impl::LocalDispatchKeySet recording() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  return keys;
}

/// The backward of a segment: the segment runs again, and its own backward follows. Edges: its
/// inputs, then the state that it shares with others.
class SegmentBackward final : public torch::autograd::Node {
 public:
  SegmentBackward(const ir::Graph& graph, const ir::Segment& segment, size_t number,
                  Interpreter& interpreter, c10::Device device,
                  std::shared_ptr<PassContext> context, std::vector<at::Tensor> inputs,
                  const std::vector<at::Tensor>& state)
      : graph_(graph),
        segment_(segment),
        number_(number),
        interpreter_(interpreter),
        device_(device),
        context_(std::move(context)),
        inputs_(std::move(inputs)) {
    edge_list edges;
    for (at::Tensor& input : inputs_) {
      edges.push_back(edge_of(input));
      if (edges.back().is_valid()) input = input.detach();
      versions_.push_back(version_of(input));
    }
    const std::vector<std::string>& names = interpreter.state_names();
    for (const auto& [value, is_shared, is_written] : segment.state) {
      const auto found = std::ranges::find(names, graph[value].name);
      const auto place = static_cast<size_t>(found - names.begin());
      const at::Tensor& tensor = state[place];
      const bool is_small = !tensor.requires_grad() && tensor.nbytes() <= kCopiedStateBytes;
      const bool is_copied = is_written || is_small;
      state_.push_back(
          {place, is_shared, is_copied ? copy_of_state(tensor) : at::Tensor(), version_of(tensor)});
      if (is_shared) edges.push_back(edge_of(tensor));
    }
    set_next_edges(std::move(edges));
    if (segment.draws && !context_->key) random_ = RandomState::now(device);
  }

  std::string name() const override { return "SegmentBackward"; }
  void release_variables() override {
    inputs_.clear();
    state_.clear();
  }

  /// What leaves the segment, [Segment::outputs], and which of it takes a gradient.
  void follow(std::vector<at::Tensor>& outputs, const decltype(Edge::function)& self) {
    for (size_t index = 0; index < outputs.size(); ++index) {
      const ir::Value& value = graph_[segment_.outputs[index]];
      if (!value.requires_grad || !ir::is_floating(value.dtype) || !outputs[index].defined()) {
        continue;
      }
      outputs[index] = outputs[index].detach();
      torch::autograd::set_history(outputs[index], self);
      followed_.push_back(index);
    }
  }

 private:
  struct State {
    size_t place;      ///< of Interpreter::state_names()
    bool is_shared;    ///< its gradients go along an edge
    at::Tensor copy;   ///< as it was before the segment; undefined where it stays so
    uint32_t version;  ///< where it is not copied
  };

  variable_list apply(variable_list&& gradients) override {
    RANNC_CHECK(context_->state != nullptr, "a segment's backward outside of its stage's");
    check_versions();
    const bool keep = context_->keep_graph;
    std::vector<at::Tensor> inputs = keep ? inputs_ : std::move(inputs_);
    std::vector<at::Tensor> state = *context_->state;
    const auto found = std::make_shared<std::vector<at::Tensor>>();
    edge_list flowing;
    std::ranges::copy_if(next_edges(), std::back_inserter(flowing), &Edge::is_valid);
    const auto beginning = ops::make_node<InputGradients>(found, std::move(flowing));
    size_t edge = 0;
    const auto begin = [&](at::Tensor& tensor) {
      if (!next_edge(edge++).is_valid()) return;
      tensor = tensor.detach();
      torch::autograd::set_history(tensor, beginning);
    };
    for (at::Tensor& input : inputs) begin(input);
    for (State& each : state_) {
      at::Tensor& tensor = state[each.place];
      if (each.copy.defined()) tensor = keep ? copy_of_state(each.copy) : std::move(each.copy);
      if (each.is_shared) begin(tensor);
    }
    run(std::move(inputs), state, std::move(gradients));
    variable_list result(next_edges().size());
    auto gradient = found->begin();  // none where no operator leads there
    for (size_t index = 0; index < result.size() && gradient != found->end(); ++index) {
      if (next_edge(index).is_valid()) result[index] = std::move(*gradient++);
    }
    return result;
  }

  void run(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& state,
           variable_list gradients) {
    edge_list roots;
    variable_list seeds;
    {
      const c10::impl::ForceDispatchKeyGuard recorded(recording());
      const at::AutoGradMode with_grad(true);
      const bool draws = segment_.draws && !context_->key;
      const RandomState now = draws ? RandomState::now(device_) : RandomState();
      if (draws) random_.restore();
      const std::vector<at::Tensor> outputs = interpreter_.run_segment(
          number_, std::move(inputs), state, context_->rows, context_->key.get(), context_->batch,
          context_->per_call, context_->gathers);
      if (draws) now.restore();
      for (size_t index = 0; index < followed_.size(); ++index) {
        const at::Tensor& output = outputs[followed_[index]];
        if (!gradients[index].defined() || !output.requires_grad()) continue;
        roots.push_back(edge_of(output));
        seeds.push_back(std::move(gradients[index]));
      }
    }
    gradients.clear();
    if (roots.empty()) return;
    torch::autograd::Engine::get_default_engine().execute(
        roots, seeds, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
  }

  /// What would be computed again from other numbers. Autograd itself looks at what it has saved in
  /// the same way.
  void check_versions() const {
    const auto refuse = [](const std::string& name) {
      throw Error(c10::str("'", name, "' was modified by an in-place operation after the forward ",
                           "pass, which its backward computes again (recompute).\n  Write to it ",
                           "after backward(), or to a copy."));
    };
    for (size_t index = 0; index < inputs_.size(); ++index) {
      if (version_of(inputs_[index]) != versions_[index]) {
        refuse(graph_[segment_.inputs[index].value].name);
      }
    }
    for (const State& each : state_) {
      if (each.copy.defined()) continue;
      if (version_of((*context_->state)[each.place]) != each.version) {
        refuse(interpreter_.state_names()[each.place]);
      }
    }
  }

  const ir::Graph& graph_;
  const ir::Segment& segment_;
  const size_t number_;
  Interpreter& interpreter_;
  const c10::Device device_;
  const std::shared_ptr<PassContext> context_;
  std::vector<at::Tensor> inputs_;
  std::vector<uint32_t> versions_;  // of the inputs
  std::vector<State> state_;
  RandomState random_;
  std::vector<size_t> followed_;  // [input of this node]: of the outputs
};

}  // namespace

SecondRuns::SecondRuns(const ir::Graph& graph, const std::vector<ir::Segment>& segments,
                       Interpreter& interpreter, c10::Device device,
                       std::shared_ptr<PassContext> context)
    : graph_(graph),
      segments_(segments),
      interpreter_(interpreter),
      device_(device),
      context_(std::move(context)) {}

void SecondRuns::enter(size_t segment, std::vector<at::Tensor> inputs,
                       const std::vector<at::Tensor>& state) {
  node_ = ops::make_node<SegmentBackward>(graph_, segments_[segment], segment, interpreter_,
                                          device_, context_, std::move(inputs), state);
}

void SecondRuns::leave(size_t /*segment*/, std::vector<at::Tensor>& outputs) {
  static_cast<SegmentBackward&>(*node_).follow(outputs, node_);
  node_ = {};
}

}  // namespace rannc::runtime
