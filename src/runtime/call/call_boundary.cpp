// Where a call meets the user's code: arguments, outputs, and their gradients.

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "rannc/ops/dtype.h"
#include "rannc/plan/outputs.h"
#include "rannc/util/error.h"
#include "runtime/call/pipeline_call.h"

namespace rannc::runtime {
namespace {

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "missing";
  return c10::str(ir::name(ops::from_torch(tensor.scalar_type())), tensor.sizes());
}

bool is_sum(const ir::Value& value) {
  return value.rows.kind == ir::RowKind::mean || value.rows.kind == ir::RowKind::sum;
}

at::TensorOptions options_of(const ir::Value& value, c10::Device device) {
  return at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(device);
}

}  // namespace

void PipelineCall::check_arguments(const std::vector<at::Tensor>& parameters) const {
  const ir::Graph& graph = part_->graph;
  const size_t arguments = graph.inputs.size() - part_->prelude.size();
  if (inputs_.size() != arguments) {
    throw Error(c10::str("the model was traced with ", arguments,
                         " tensor arguments, but was called with ", inputs_.size()));
  }
  for (size_t index = 0; index < inputs_.size(); ++index) {
    const ir::Value& value = graph[graph.inputs[index]];
    const at::Tensor& input = inputs_[index];
    const std::vector<int64_t> sizes = sizes_at(value, orders_->rows);
    if (!input.defined() || input.sizes() != c10::IntArrayRef(sizes) ||
        input.scalar_type() != ops::to_torch(value.dtype)) {
      throw Error(c10::str("argument '", value.name, "' is ", describe(input),
                           ", but the model was traced and planned for ", ir::name(value.dtype),
                           c10::IntArrayRef(sizes), " on rank ", part_->rank,
                           ".\n  Call it with dtypes and shapes of the first call."));
    }
  }
  RANNC_CHECK(parameters.size() == part_->parameter_names.size(), c10::str(parameters.size()));
  RANNC_CHECK(buffers_.size() == part_->buffer_names.size(), c10::str(buffers_.size()));
  const auto check = [&](const char* what, const std::string& name, const at::Tensor& tensor,
                         c10::IntArrayRef sizes) {
    if (tensor.defined() && tensor.sizes() == sizes) return;
    throw Error(c10::str(what, " '", name, "' is ", describe(tensor),
                         ", but the model was traced with the shape ", sizes));
  };
  for (size_t index = 0; index < parameters.size(); ++index) {
    check("parameter", part_->parameter_names[index], parameters[index],
          part_->parameter_sizes[index]);
  }
  for (size_t index = 0; index < buffers_.size(); ++index) {
    check("buffer", part_->buffer_names[index], buffers_[index], part_->buffer_sizes[index]);
  }
}

void PipelineCall::finish_outputs() {
  std::vector<at::Tensor> values;
  for (size_t index = 0; index < own_outputs_.size(); ++index) {
    values.push_back(finish_output(index));
  }
  for (ir::ValueId output : part_->graph.outputs) {
    const bool returned = std::ranges::binary_search(part_->output_values, output);
    outputs_.push_back(returned ? values[place_of(part_->output_values, output)] : at::Tensor());
  }
  own_outputs_.clear();
  scalars_.clear();
  inputs_.clear();
}

at::Tensor PipelineCall::finish_output(size_t index) {
  const ir::ValueId id = part_->output_values[index];
  const ir::Value& value = part_->graph[id];
  at::Tensor tensor = std::move(own_outputs_[index].tensor);
  if (is_sum(value)) {
    tensor = scalars_[place_of(part_->scalar_outputs, id)].to(ops::to_torch(value.dtype));
  } else if (!tensor.defined() && orders_->rows == 0) {
    tensor = at::empty(sizes_at(value, 0), options_of(value, part_->device));
  }
  return tensor.defined() ? tensor.detach() : tensor;
}

void PipelineCall::seed_output_gradients(const std::vector<at::Tensor>& output_grads) {
  // Where the loss of all ranks is the mean over all rows, a rank's own loss counts by its rows.
  const double own = part_->outside_sum ? 1.0
                                        : static_cast<double>(orders_->rows) /
                                              static_cast<double>(orders_->global_rows);
  for (size_t position = 0; position < output_grads.size(); ++position) {
    if (!output_grads[position].defined()) continue;
    const ir::ValueId id = part_->graph.outputs[position];
    const ir::Value& value = part_->graph[id];
    at::Tensor grad = output_grads[position].to(part_->device, ops::to_torch(value.dtype));
    if (!is_sum(value) && own != 1) grad = grad.mul(own);
    at::Tensor& sum = user_grads_[place_of(part_->output_values, id)];
    sum = sum.defined() ? sum.add(grad) : grad;
  }
}

void PipelineCall::seed_loss_gradient() {
  const ir::ValueId loss = plan::loss_of(part_->graph).value();
  const at::TensorOptions options = options_of(part_->graph[loss], part_->device);
  if (options.dtype() == at::kHalf) loss_seed_ = std::min(loss_seed_, 32768.0);  // its largest
  user_grads_[place_of(part_->output_values, loss)] = at::full({}, loss_seed_, options);
}

}  // namespace rannc::runtime
