#include <algorithm>
#include <string_view>

#include "ir/argument.h"
#include "ir/rewrite/rewriter.h"
#include "ir/rows/row_call.h"
#include "rannc/ir/rewrites.h"

namespace rannc::ir {
namespace {

/// torch's Reduction.
constexpr AffineInt kNone{0, 0};
constexpr AffineInt kSum{2, 0};

/// Where all of these have (input, target, weight, reduction, ignore_index).
constexpr size_t kWeight = 2;
constexpr size_t kReduction = 3;
constexpr size_t kIgnoreIndex = 4;

AffineInt integer(const Node& node, size_t index, int64_t fallback) {
  const auto* value = std::get_if<AffineInt>(&argument(node, index));
  return value == nullptr ? AffineInt{fallback, 0} : *value;
}

/// Whether the loss is a mean over the targets that are not ignored. (Class probabilities as
/// targets are averaged over all rows.)
bool divides_by_count(const Graph& graph, const Node& node) {
  if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::")) return false;
  const bool is_class_loss = find_operator(base_name(node.op)).family == OperatorFamily::class_loss;
  if (!is_class_loss || integer(node, kReduction, 1) != AffineInt{1, 0}) return false;
  const auto* input = std::get_if<ValueId>(&argument(node, 0));
  const auto* target = std::get_if<ValueId>(&argument(node, 1));
  return input != nullptr && target != nullptr && !is_floating(graph[*target].dtype) &&
         graph[*target].dims.size() < graph[*input].dims.size();
}

class Exact {
 public:
  explicit Exact(const Graph& graph) : graph_(graph), out_(graph) {}

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (divides_by_count(graph_, node)) {
        divide(node);
      } else {
        out_.keep(node);
      }
    }
    return out_.take();
  }

 private:
  void divide(const Node& node) {
    const Value& loss = graph_[node.outputs.front()];
    const DType wide_type = wide(loss.dtype);
    const ValueId count = out_.cast(node, "divisor", count_of(node), wide_type);
    const ValueId total = total_of(node, loss, wide_type);
    if (wide_type == loss.dtype) {
      out_.call_into(node.outputs.front(), node, "aten::div.Tensor", {total, count});
      return;
    }
    const ValueId mean = out_.call(node, "mean", "aten::div.Tensor", {total, count},
                                   {wide_type, {}, loss.requires_grad});
    out_.call_into(node.outputs.front(), node, "aten::to.dtype",
                   {mean, torch_number(loss.dtype), false, false, None{}});
  }

  /// The number of targets that are not ignored, or the sum of their weights.
  ValueId count_of(const Node& node) {
    const ValueId target = std::get<ValueId>(argument(node, 1));
    const std::vector<AffineInt> dims = graph_[target].dims;
    const AffineInt ignored = integer(node, kIgnoreIndex, -100);
    const auto* weight = std::get_if<ValueId>(&argument(node, kWeight));
    if (weight == nullptr) {
      const ValueId kept =
          out_.call(node, "kept", "aten::ne.Scalar", {target, ignored}, {DType::boolean, dims});
      return out_.call(node, "count", "aten::sum", {kept, None{}}, {DType::int64, {}});
    }
    const ValueId left_out =
        out_.call(node, "ignored", "aten::eq.Scalar", {target, ignored}, {DType::boolean, dims});
    const ValueId classes =
        out_.call(node, "classes", "aten::masked_fill.Scalar", {target, left_out, AffineInt{}},
                  {graph_[target].dtype, dims});
    const DType dtype = graph_[*weight].dtype;
    const ValueId weights = out_.call(node, "weights", "aten::index.Tensor",
                                      {*weight, ValueList{{classes}}}, {dtype, dims});
    const ValueId kept = out_.call(node, "kept", "aten::masked_fill.Scalar",
                                   {weights, left_out, AffineInt{}}, {dtype, dims});
    return out_.call(node, "count", "aten::sum", {kept, torch_number(wide(dtype))},
                     {wide(dtype), {}});
  }

  /// The same loss as a sum. In 16 bits a sum of many would overflow, so it is taken in 32.
  ValueId total_of(const Node& node, const Value& loss, DType wide_type) {
    std::vector<Argument> inputs = node.inputs;
    inputs.resize(std::max(inputs.size(), kReduction + 1), None{});
    if (wide_type == loss.dtype) {
      inputs[kReduction] = kSum;
      return out_.call(node, "sum", node.op, std::move(inputs),
                       {loss.dtype, {}, loss.requires_grad});
    }
    inputs[kReduction] = kNone;
    const ValueId target = std::get<ValueId>(argument(node, 1));
    const ValueId losses = out_.call(node, "losses", node.op, std::move(inputs),
                                     {loss.dtype, graph_[target].dims, loss.requires_grad});
    return out_.call(node, "sum", "aten::sum", {losses, torch_number(wide_type)},
                     {wide_type, {}, loss.requires_grad});
  }

  const Graph& graph_;
  Rewriter out_;
};

}  // namespace

Graph exact_means(const Graph& graph) { return Exact(graph).run(); }

}  // namespace rannc::ir
