#include "rannc/profile/replay.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>

#include "rannc/ir/shard.h"
#include "rannc/ops/dtype.h"
#include "rannc/ops/operator.h"
#include "rannc/util/error.h"

namespace rannc::profile {

Placeholders placeholders(const ir::Graph& graph, int64_t rows, c10::Device device) {
  Placeholders made;
  for (const ir::Value& value : graph.values) {
    if (value.kind == ir::ValueKind::result) continue;
    std::vector<int64_t> sizes;
    for (const ir::AffineInt& dim : value.dims) sizes.push_back(dim.at(rows));
    const c10::Device where = value.on_host ? c10::Device(c10::kCPU) : device;
    at::Tensor tensor =
        at::empty(sizes, at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(where));
    if (value.requires_grad && ir::is_floating(value.dtype)) tensor.requires_grad_(true);
    made.tensors.push_back(std::move(tensor));
    made.is_input.push_back(value.kind == ir::ValueKind::input);
  }
  return made;
}

namespace {

/// Something of the size of a collective's result, which keeps what that keeps for the backward:
/// nothing.
at::Tensor like_collective(const ir::Graph& graph, const ir::Node& node, const at::Tensor& operand,
                           int64_t rows) {
  if (node.op == "group::sum_gradient") return operand.view_as(operand);
  std::vector<int64_t> sizes;
  for (const ir::AffineInt& dim : graph[node.outputs.front()].dims) sizes.push_back(dim.at(rows));
  if (node.op == "group::sum" && operand.is_contiguous()) return operand.clone();
  if (!operand.requires_grad()) return at::empty(sizes, operand.options());
  return operand.sum().expand(sizes).clone();
}

}  // namespace

void replay(const ir::Graph& graph, const ops::Objects& objects,
            const std::vector<at::Tensor>& given, int64_t rows, c10::Device device,
            const BeforeNode& before_node) {
  // Casts are nodes of the graph.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::vector<at::Tensor> values(graph.values.size());
  size_t next = 0;
  for (size_t index = 0; index < values.size(); ++index) {
    if (graph.values[index].kind == ir::ValueKind::result) continue;
    RANNC_CHECK(next < given.size(),
                c10::str("no tensor is given for '", graph.values[index].name, "'"));
    values[index] = given[next++];
  }
  std::vector<at::Tensor> operands, results;
  std::vector<std::vector<int64_t>> strides;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const ir::Node& node = graph.nodes[index];
    operands.clear();
    strides.clear();
    for (ir::ValueId operand : graph.operands({index})) {
      operands.push_back(values[operand.index]);
      const at::Tensor& tensor = operands.back();
      strides.push_back(tensor.layout() == at::kStrided ? tensor.strides().vec()
                                                        : std::vector<int64_t>());
    }
    before_node(index, strides);
    const c10::AutoGradMode grad_mode(node.grad_enabled);
    if (ir::is_collective(node)) {
      results = {like_collective(graph, node, operands.front(), rows)};
    } else {
      ops::Operator call(graph, {index}, objects, device);
      call.set_rows(rows);
      call.call(operands, results);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i].valid()) values[node.outputs[i].index] = results[i];
    }
  }
}

}  // namespace rannc::profile
