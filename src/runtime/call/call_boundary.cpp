#include "runtime/call/call_boundary.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <utility>

#include "rannc/ops/dtype.h"
#include "rannc/ops/shares_memory.h"
#include "rannc/plan/outputs.h"
#include "rannc/util/error.h"
#include "runtime/call/gradient_sum.h"

namespace rannc::runtime {
namespace {

bool is_sum(const ir::Value& value) {
  return value.rows.kind == ir::RowKind::mean || value.rows.kind == ir::RowKind::sum;
}

at::TensorOptions options_of(const ir::Value& value, c10::Device device) {
  return at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(device);
}

c10::ScalarType wide_dtype(const ir::Value& value) {
  return c10::isComplexType(ops::to_torch(value.dtype)) ? at::kComplexDouble : at::kDouble;
}

}  // namespace

CallBoundary::CallBoundary(const RankPart& part, const Orders& orders,
                           std::vector<at::Tensor> inputs, double loss_seed)
    : part_(part), orders_(orders), loss_seed_(loss_seed), inputs_(std::move(inputs)) {
  for (at::Tensor& input : inputs_) input = input.detach();
  for (ir::ValueId id : part_.scalar_outputs) {
    const ir::Value& value = part_.graph[id];
    scalars_.push_back(at::zeros(
        sizes_at(value, 0), options_of(value, part_.device_of(value)).dtype(wide_dtype(value))));
  }
  own_outputs_.resize(part_.output_values.size());
  output_grads_.resize(part_.output_values.size());
  input_grads_.resize(inputs_.size());
}

void CallBoundary::run_prelude(const std::vector<at::Tensor>& buffers) {
  part_.prelude.run(
      inputs_, [&](const std::string& name) { return buffers[part_.buffer_place(name)]; },
      orders_.rows, orders_.global_rows, *part_.comm, *part_.stream);
}

const at::Tensor& CallBoundary::input(ir::ValueId value) const {
  return inputs_[place_of(part_.graph.inputs, value)];
}

Assembly& CallBoundary::own_output(ir::ValueId value) {
  return own_outputs_[place_of(part_.output_values, value)];
}

const at::Tensor& CallBoundary::output_gradient(ir::ValueId value) const {
  return output_grads_[place_of(part_.output_values, value)];
}

Assembly& CallBoundary::input_gradient(ir::ValueId value) {
  return input_grads_[place_of(part_.graph.inputs, value)];
}

/// What a share contributes to a scalar of the whole batch, and receives of its gradient.
double CallBoundary::scalar_weight(ir::ValueId value, const MicroBatch& batch) const {
  if (part_.graph[value].rows.kind == ir::RowKind::sum) return 1;
  return static_cast<double>(batch.rows) / static_cast<double>(orders_.global_rows);
}

void CallBoundary::add_scalars(const LocalStage& local, const MicroBatch& batch) {
  for (size_t index = 0; index < scalars_.size(); ++index) {
    const ir::ValueId value = part_.scalar_outputs[index];
    const int output = local.stage->find_output(value);
    if (output < 0) continue;
    scalars_[index].add_(
        batch.outputs[static_cast<size_t>(output)].to(scalars_[index].scalar_type()),
        scalar_weight(value, batch));
  }
}

void CallBoundary::sum_scalars() {
  start_sum();
  finish_sum();
}

void CallBoundary::start_sum() {
  sum_ = start_scalar_sum(scalars_, *part_.comm, *part_.stream, "loss reduction");
}

void CallBoundary::finish_sum() {
  finish_scalar_sum(scalars_, sum_, *part_.stream);
  sum_ = {};
}

void CallBoundary::add_scalar_gradients(const LocalStage& local, MicroBatch& batch) const {
  for (ir::ValueId value : part_.scalar_outputs) {
    const int output = local.stage->find_output(value);
    const at::Tensor& grad = output_gradient(value);
    if (output < 0 || !grad.defined()) continue;
    add_whole(batch.output_grads[static_cast<size_t>(output)],
              grad.mul(scalar_weight(value, batch)));
  }
}

std::vector<at::Tensor> CallBoundary::take_outputs() {
  std::vector<at::Tensor> values;
  for (size_t index = 0; index < own_outputs_.size(); ++index) {
    values.push_back(finish_output(index));
  }
  std::vector<at::Tensor> outputs;
  for (ir::ValueId output : part_.graph.outputs) {
    const bool returned = std::ranges::binary_search(part_.output_values, output);
    outputs.push_back(returned ? values[place_of(part_.output_values, output)] : at::Tensor());
  }
  own_outputs_.clear();
  scalars_.clear();
  inputs_.clear();
  return outputs;
}

at::Tensor CallBoundary::finish_output(size_t index) {
  const ir::ValueId id = part_.output_values[index];
  const ir::Value& value = part_.graph[id];
  at::Tensor tensor = std::move(own_outputs_[index].tensor);
  if (is_sum(value)) {
    tensor = scalars_[place_of(part_.scalar_outputs, id)].to(ops::to_torch(value.dtype));
  } else if (!tensor.defined() && orders_.rows == 0) {
    tensor = at::empty(sizes_at(value, 0), options_of(value, part_.device_of(value)));
  }
  return tensor.defined() ? tensor.detach() : tensor;
}

void CallBoundary::seed_loss() {
  const ir::ValueId loss = plan::loss_of(part_.graph).value();
  const at::TensorOptions options =
      options_of(part_.graph[loss], part_.device_of(part_.graph[loss]));
  if (options.dtype() == at::kHalf) loss_seed_ = std::min(loss_seed_, 32768.0);  // its largest
  output_grads_[place_of(part_.output_values, loss)] = at::full({}, loss_seed_, options);
}

at::Tensor CallBoundary::gradient_of_loss(const std::vector<at::Tensor>& output_grads) const {
  const ir::ValueId loss = plan::loss_of(part_.graph).value();
  at::Tensor sum;
  for (size_t position = 0; position < output_grads.size(); ++position) {
    const at::Tensor& grad = output_grads[position];
    if (!grad.defined()) continue;
    const ir::ValueId output = part_.graph.outputs[position];
    if (output != loss) {
      throw Error(c10::str("backward reached the output '", part_.graph[output].name,
                           "', but under the schedule '", plan::name(orders_.program.schedule),
                           "' only the loss has a gradient.\n  Use Config(schedule='gpipe'), or "
                           "compute all of the loss in forward()."));
    }
    sum = sum.defined() ? sum.add(grad) : grad;
  }
  if (sum.defined() && loss_seed_ != 1) sum = sum.to(at::kDouble).div(loss_seed_);
  return sum;
}

void CallBoundary::seed_outputs(const std::vector<at::Tensor>& output_grads) {
  // Where the loss of all ranks is the mean over all rows, a rank's own loss counts by its rows.
  const double own = part_.outside_sum ? 1.0
                                       : static_cast<double>(orders_.rows) /
                                             static_cast<double>(orders_.global_rows);
  for (size_t position = 0; position < output_grads.size(); ++position) {
    if (!output_grads[position].defined()) continue;
    const ir::ValueId id = part_.graph.outputs[position];
    const ir::Value& value = part_.graph[id];
    at::Tensor grad = output_grads[position].to(ops::to_torch(value.dtype));
    if (!is_sum(value) && own != 1) grad = grad.mul(own);
    at::Tensor& sum = output_grads_[place_of(part_.output_values, id)];
    sum = sum.defined() ? sum.add(grad) : grad;
  }
}

void CallBoundary::take_gradients(std::vector<at::Tensor>& gradients) {
  for (size_t index = 0; index < input_grads_.size(); ++index) {
    at::Tensor gradient = std::move(input_grads_[index].tensor);
    const ir::Value& value = part_.graph[part_.graph.inputs[index]];
    // Nobody sends a gradient of no rows.
    if (!gradient.defined() && orders_.rows == 0 && value.requires_grad &&
        value.rows.kind == ir::RowKind::apart) {
      gradient = at::zeros(sizes_at(value, 0), options_of(value, part_.device_of(value)));
    }
    // The caller may add to it, as to every gradient.
    if (gradient.defined() && ops::shares_memory(gradient)) gradient = gradient.clone();
    gradients.push_back(std::move(gradient));
  }
}

void CallBoundary::show_gradients(std::vector<at::Tensor>& gradients) const {
  for (const Assembly& assembly : input_grads_) gradients.push_back(assembly.tensor);
}

void CallBoundary::reset_gradients() {
  output_grads_.assign(output_grads_.size(), {});
  input_grads_.assign(input_grads_.size(), {});
}

void CallBoundary::forget() {
  output_grads_.clear();
  input_grads_.clear();
}

}  // namespace rannc::runtime
