#include "runtime/stage/stage.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "rannc/ir/cut.h"
#include "rannc/ir/shard.h"
#include "rannc/ops/make_node.h"
#include "rannc/util/error.h"
#include "runtime/group/group.h"

namespace rannc::runtime {

struct GraphEnds {
  std::vector<torch::autograd::Edge> edges;  ///< invalid where an output requires no gradient
};

namespace {

int find(const std::vector<ir::ValueId>& values, ir::ValueId value) {
  const auto found = std::ranges::find(values, value);
  return found == values.end() ? -1 : static_cast<int>(found - values.begin());
}

/// Tensors of the same memory that autograd does not follow.
std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.requires_grad() ? tensor.detach() : tensor);
  }
  return result;
}

/// Where only other replicas have a gradient of an output, this one takes zeros: all must run the
/// same backward, because its batch normalisations wait for each other.
void add_zeros(const std::vector<torch::autograd::Edge>& edges, std::vector<at::Tensor>& grads,
               const WholeBatch& batch, int64_t message) {
  at::Tensor given = at::zeros({static_cast<int64_t>(grads.size())}, at::kDouble);
  for (size_t index = 0; index < grads.size(); ++index) {
    given[static_cast<int64_t>(index)] = grads[index].defined();
  }
  given = batch.gather(given, message).sum(0);
  for (size_t index = 0; index < grads.size(); ++index) {
    const torch::autograd::Edge& edge = edges[index];
    if (grads[index].defined() || !edge.is_valid()) continue;
    if (given[static_cast<int64_t>(index)].item<double>() == 0) continue;
    grads[index] = edge.function->input_metadata(edge.input_nr).zeros_like();
  }
}

/// [input of the stage] whether it is an argument of the call that has no rows: every rank has it.
std::vector<bool> find_without_rows(const ir::Graph& whole, const ir::Graph& stage) {
  std::vector<bool> found;
  for (ir::ValueId input : stage.inputs) {
    const ir::Value& value = whole[whole.find_value(stage[input].name).value()];
    found.push_back(value.kind == ir::ValueKind::input && value.rows.kind == ir::RowKind::none);
  }
  return found;
}

ir::ShardedGraph part_of(ir::Graph graph, const Group* group,
                         const std::vector<std::string>& factors, const ir::Layouts& held,
                         bool sequence) {
  if (group == nullptr) return {std::move(graph), {}, {}, {}, {}, {}};
  const auto chosen = factors.empty() ? ir::choose_factors(graph, group->size()) : factors;
  std::vector<ir::ShardedGraph> places;
  for (int place = 0; place < group->size(); ++place) {
    places.push_back(ir::shard(graph, group->size(), place, chosen, held, sequence));
  }
  ir::verify_shard(graph, places);  // by other rules: a wrong graph would be a wrong number
  return std::move(places[static_cast<size_t>(group->place())]);
}

/// The graph of a stage in the order in which it runs.
ir::SegmentedGraph with_segments(const ir::Graph& whole, ir::Graph stage, const RunAgain& again) {
  if (again.all) return ir::as_one_segment(std::move(stage));
  std::unordered_map<std::string_view, ir::NodeId> by_name;
  for (uint32_t index = 0; index < stage.nodes.size(); ++index) {
    by_name.emplace(stage.nodes[index].name, ir::NodeId{index});
  }
  std::vector<std::vector<ir::NodeId>> segments;
  for (const std::vector<ir::NodeId>& nodes : again.segments) {
    std::vector<ir::NodeId>& segment = segments.emplace_back();
    for (ir::NodeId node : nodes) segment.push_back(by_name.at(whole[node].name));
    std::ranges::sort(segment);
  }
  return ir::segmented(std::move(stage), segments);
}

}  // namespace

Stage::Stage(const ir::Graph& whole, const std::vector<ir::NodeId>& nodes,
             std::vector<ir::ValueId> outputs, const ops::Objects& objects, c10::Device device,
             const RunAgain& again, std::shared_ptr<const Group> group,
             const std::vector<std::string>& factors, const ir::Layouts& held, bool sequence,
             Sharing sharing)
    : sharded_(part_of(ir::extract(whole, nodes, outputs), group.get(), factors, held, sequence)),
      segmented_(with_segments(whole, std::move(sharded_.graph), again)),
      outputs_(std::move(outputs)),
      without_rows_(find_without_rows(whole, graph_)),
      interpreter_(std::make_unique<Interpreter>(graph_, objects, device, without_rows_,
                                                 std::move(group), segmented_.segments)),
      sharing_(std::move(sharing)),
      device_(device) {
  if (!sharing_.names.empty()) {
    shared_ = SharedParameters(graph_, segmented_.segments, state_names(), sharing_);
    if (!shared_.empty()) interpreter_->share(shared_);
  }
  std::unordered_map<std::string, ir::ValueId> by_name;
  for (uint32_t index = 0; index < whole.values.size(); ++index) {
    by_name.emplace(whole.values[index].name, ir::ValueId{index});
  }
  std::unordered_map<std::string_view, ir::NodeId> nodes_by_name;
  for (ir::NodeId node : nodes) nodes_by_name.emplace(whole[node].name, node);
  for (const ir::Node& node : graph_.nodes) {
    const auto found = nodes_by_name.find(node.name);
    whole_nodes_.push_back(found == nodes_by_name.end() ? ir::NodeId{} : found->second);
  }
  only_aten_ = std::ranges::all_of(graph_.nodes, [](const ir::Node& node) {
    return ir::is_collective(node) ||
           (node.kind == ir::OpKind::dispatcher && node.op.starts_with("aten::"));
  });
  for (ir::ValueId input : graph_.inputs) {
    const auto found = by_name.find(graph_[input].name);
    RANNC_CHECK(found != by_name.end(), c10::str("stage input '", graph_[input].name, "'"));
    inputs_.push_back(found->second);
  }
}

int Stage::find_input(ir::ValueId value) const { return find(inputs_, value); }
int Stage::find_output(ir::ValueId value) const { return find(outputs_, value); }
const std::vector<std::string>& Stage::state_names() const { return interpreter_->state_names(); }
bool Stage::needs_whole_batch() const {
  return std::ranges::any_of(graph_.nodes, &ir::Node::whole_batch);
}

std::vector<at::Tensor> Stage::forward(std::vector<at::Tensor> inputs,
                                       const std::vector<at::Tensor>& state, int64_t rows,
                                       const DrawKey* key, PerCall* per_call,
                                       const std::shared_ptr<WholeBatch>& batch,
                                       ParameterGathers* gathers) {
  const at::NoGradGuard no_grad;
  // What the call shares may take gradients in a backward, and so has to lead to the parameters.
  const bool leads_to_state = per_call != nullptr && per_call->gradients;
  return detached(interpreter_->run(std::move(inputs), leads_to_state ? state : detached(state),
                                    rows, key, batch, per_call, nullptr, gathers));
}

std::vector<at::Tensor> Stage::forward(std::vector<at::Tensor> inputs,
                                       const std::vector<bool>& requires_grad,
                                       const std::vector<at::Tensor>& state, int64_t rows,
                                       StagePass& pass, std::shared_ptr<const DrawKey> key,
                                       PerCall* per_call, std::shared_ptr<WholeBatch> batch,
                                       ParameterGathers* gathers) {
  pass.requires_grad = requires_grad;
  pass.context = std::make_shared<PassContext>(
      PassContext{.rows = rows, .key = std::move(key), .batch = std::move(batch)});
  pass.input_grads = std::make_shared<std::vector<at::Tensor>>();
  const auto node = ops::make_node<InputGradients>(pass.input_grads);
  for (size_t index = 0; index < inputs.size(); ++index) {
    inputs[index] = inputs[index].detach();
    if (pass.requires_grad[index]) torch::autograd::set_history(inputs[index], node);
  }
  SecondRuns second_runs(graph_, segmented_.segments, *interpreter_, device_, pass.context);
  std::vector<at::Tensor> outputs;
  {
    const at::AutoGradMode with_grad(true);
    outputs = interpreter_->run(std::move(inputs), state, rows, pass.context->key.get(),
                                pass.context->batch, per_call, &second_runs, gathers);
  }
  pass.ends = std::make_shared<GraphEnds>();
  for (at::Tensor& output : outputs) {
    const bool differentiable = output.defined() && output.requires_grad();
    pass.ends->edges.push_back(differentiable ? torch::autograd::impl::gradient_edge(output)
                                              : torch::autograd::Edge());
    if (differentiable) output = output.detach();
  }
  return outputs;
}

std::vector<at::Tensor> Stage::backward(StagePass pass, std::vector<at::Tensor> grads,
                                        const std::vector<at::Tensor>& state, PerCall* per_call,
                                        ParameterGathers* gathers, bool keep_graph) {
  PassContext& context = *pass.context;
  if (context.batch) {
    add_zeros(pass.ends->edges, grads, *context.batch,
              2 * static_cast<int64_t>(graph_.nodes.size()));
  }
  context.state = &state;
  context.per_call = per_call;
  context.gathers = gathers;
  context.keep_graph = keep_graph;
  torch::autograd::edge_list roots;
  torch::autograd::variable_list seeds;
  for (size_t index = 0; index < grads.size(); ++index) {
    torch::autograd::Edge& edge = pass.ends->edges[index];
    if (!edge.is_valid() || !grads[index].defined()) continue;
    roots.push_back(keep_graph ? edge : std::move(edge));
    seeds.push_back(std::move(grads[index]));
  }
  pass.ends.reset();
  grads.clear();
  if (!roots.empty()) {
    // No second derivatives follow, so torch's own operators need not look out for autograd. What
    // others do in their backward is not known.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (only_aten_) below.emplace();
    torch::autograd::Engine::get_default_engine().execute(
        roots, seeds, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  context.state = nullptr;
  std::vector<at::Tensor> input_grads(pass.requires_grad.size());
  auto found = pass.input_grads->begin();
  for (size_t index = 0; index < input_grads.size() && found != pass.input_grads->end(); ++index) {
    if (pass.requires_grad[index]) input_grads[index] = std::move(*found++);
  }
  pass.input_grads->clear();
  return input_grads;
}

void Stage::skip(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& state,
                 const DrawKey* key, ParameterGathers* gathers) {
  const at::NoGradGuard no_grad;
  interpreter_->run_row_free_effects(inputs, detached(state), key, gathers);
}

}  // namespace rannc::runtime
