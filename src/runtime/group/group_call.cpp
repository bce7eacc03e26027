#include "runtime/group/group_call.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "rannc/ops/dtype.h"
#include "rannc/util/error.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {
namespace {

/// The rows of all places behind each other.
at::Tensor joined(const Group& group, const ir::Value& value, const GroupRows& rows,
                  const at::Tensor& mine) {
  std::vector<int64_t> numbers;
  for (const int64_t each : rows.of) {
    const std::vector<int64_t> sizes = sizes_at(value, each);
    numbers.push_back(std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()));
  }
  std::vector<at::Tensor> parts = group.gather(mine, numbers, "rows of the batch", Group::kRows);
  for (size_t place = 0; place < parts.size(); ++place) {
    parts[place] = parts[place].view(sizes_at(value, rows.of[place]));
  }
  return at::cat(parts, value.rows.dim);
}

}  // namespace

int64_t GroupRows::all() const { return std::accumulate(of.begin(), of.end(), int64_t{0}); }
int64_t GroupRows::before(int place) const {
  return std::accumulate(of.begin(), of.begin() + place, int64_t{0});
}

std::vector<at::Tensor> gather_arguments(const RankPart& part, const Group& group,
                                         const GroupRows& rows, std::vector<at::Tensor> inputs) {
  for (size_t index = 0; index < inputs.size(); ++index) {
    const ir::Value& value = part.graph[part.graph.inputs[index]];
    if (!ir::has_row_dimension(value)) continue;
    if (value.rows.outer != 1) {
      throw Error(c10::str("argument '", value.name, "' has its rows inside another dimension, ",
                           "which tensor_parallel cannot put together"));
    }
    inputs[index] = joined(group, value, rows, inputs[index].detach());
  }
  return inputs;
}

GroupCall::GroupCall(std::shared_ptr<Call> whole, std::shared_ptr<const RankPart> part,
                     std::shared_ptr<const Group> group, GroupRows rows)
    : whole_(std::move(whole)),
      part_(std::move(part)),
      group_(std::move(group)),
      rows_(std::move(rows)) {
  const ir::Graph& graph = part_->graph;
  for (size_t index = 0; index < whole_->outputs().size(); ++index) {
    outputs_.push_back(own_rows(graph[graph.outputs[index]], whole_->outputs()[index]));
  }
}

at::Tensor GroupCall::own_rows(const ir::Value& value, const at::Tensor& whole) const {
  if (!whole.defined() || !ir::has_row_dimension(value)) return whole;
  const int64_t begin =
      sizes_at(value, rows_.before(group_->place()))[static_cast<size_t>(value.rows.dim)];
  const int64_t size = sizes_at(
      value, rows_.of[static_cast<size_t>(group_->place())])[static_cast<size_t>(value.rows.dim)];
  return whole.narrow(value.rows.dim, begin, size).clone();
}

std::vector<at::Tensor> GroupCall::backward(std::vector<at::Tensor> output_grads, bool keep_graph,
                                            BackwardOf of) {
  const ir::Graph& graph = part_->graph;
  const int64_t mine = rows_.of[static_cast<size_t>(group_->place())];
  const double share =
      static_cast<double>(mine) / static_cast<double>(std::max<int64_t>(rows_.all(), 1));
  for (size_t index = 0; index < output_grads.size(); ++index) {
    const ir::Value& value = graph[graph.outputs[index]];
    const bool some_rank_has =
        index >= BackwardOf::kMostOutputs || ((of.outputs >> index) & 1) != 0;
    const bool returned = outputs_[index].defined();  // alike on all ranks
    if (!returned || !some_rank_has || !ir::has_row_dimension(value)) continue;
    if (!ir::is_floating(value.dtype)) continue;
    at::Tensor& grad = output_grads[index];
    if (!grad.defined()) {
      grad = at::zeros(sizes_at(value, mine),
                       at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(part_->device));
    }
    if (!part_->outside_sum) grad = grad.mul(share);
    grad = joined(*group_, value, rows_, grad);
  }
  std::vector<at::Tensor> found =
      whole_->backward(std::move(output_grads), keep_graph, std::move(of));
  if (!keep_graph) outputs_.clear();
  const size_t parameters = part_->parameter_names.size();
  for (size_t index = parameters; index < found.size(); ++index) {
    found[index] = own_rows(graph[graph.inputs[index - parameters]], found[index]);
  }
  return found;
}

}  // namespace rannc::runtime
