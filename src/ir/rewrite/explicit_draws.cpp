#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/argument.h"
#include "ir/rewrite/rewriter.h"
#include "ir/rows/row_call.h"
#include "rannc/ir/draws.h"
#include "rannc/ir/rewrites.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

using Dims = std::vector<AffineInt>;

/// Arguments of scaled_dot_product_attention after query, key and value.
constexpr size_t kMask = 3;
constexpr size_t kProbability = 4;
constexpr size_t kCausal = 5;
constexpr size_t kScale = 6;
constexpr size_t kGrouped = 7;

bool is_true(const Node& node, size_t index) {
  const auto* value = std::get_if<bool>(&argument(node, index));
  return value != nullptr && *value;
}

[[noreturn]] void refuse(const Node& node, const std::string& why) {
  throw TraceError(fmt::format(
      "deterministic_dropout: {} (node '{}', module '{}', {}) {}.\n"
      "  Draw by dropout, bernoulli, rand or randn instead, or leave deterministic_dropout off.",
      node.op.empty() ? "a function" : node.op, node.name, node.module, place(node.source), why));
}

/// Dimensions but the last two of a product, which broadcasts.
Dims batch_dims(Dims a, Dims b) {
  if (a.size() < b.size()) std::swap(a, b);
  const size_t more = a.size() - b.size();
  for (size_t index = 0; index + 2 < b.size(); ++index) {
    if (a[more + index] == AffineInt{1, 0}) a[more + index] = b[index];
  }
  a.resize(a.size() - 2);
  return a;
}

class Explicit {
 public:
  explicit Explicit(const Graph& graph) : graph_(graph), out_(graph) {}

  Graph run() {
    for (const Node& node : graph_.nodes) {
      const bool is_call = node.kind == OpKind::dispatcher && draws(node);
      if (is_call && node.op == "aten::scaled_dot_product_attention") {
        attend(node);
        continue;
      }
      if (is_call && !keyed_draw(node)) {
        refuse(node, "draws random numbers in a way that cannot be told sample by sample");
      }
      out_.keep(node);
    }
    return in_order(out_.take());
  }

 private:
  /// As torch computes it where no fused kernel does: query and key are both scaled by the root,
  /// and 16 bits are computed in 32.
  void attend(const Node& node) {
    if (is_true(node, kGrouped)) refuse(node, "has dropout inside and enable_gqa=True");
    const auto operand = [&](size_t index, const char* role) {
      const ValueId value = std::get<ValueId>(node.inputs.at(index));
      return out_.cast(node, role, value, wide(graph_[value].dtype));
    };
    const ValueId query = operand(0, "query");
    const ValueId key = operand(1, "key");
    const ValueId value = operand(2, "value");
    const ValueId masked = mask(node, scores(node, query, key));

    const NewResult like = result_like(masked);
    // A row of which nothing is kept gives zeros, as in the fused operator.
    const bool may_be_empty = std::holds_alternative<ValueId>(argument(node, kMask));
    const ValueId weights =
        out_.call(node, "softmax", may_be_empty ? "aten::_safe_softmax" : "aten::softmax.int",
                  {masked, AffineInt{-1, 0}, None{}}, like);
    const ValueId kept = out_.call(node, "dropout", "aten::dropout",
                                   {weights, node.inputs[kProbability], true}, like);
    finish(node, kept, value);
  }

  [[nodiscard]] NewResult result_like(ValueId value) const {
    return {out_[value].dtype, out_[value].dims, out_[value].requires_grad};
  }

  ValueId scores(const Node& node, ValueId query, ValueId key) {
    const Dims width = out_[query].dims;
    double scale = 1 / std::sqrt(static_cast<double>(width.back().fixed));
    if (const auto* given = std::get_if<double>(&argument(node, kScale))) scale = *given;
    const double root = std::sqrt(std::abs(scale));
    const ValueId scaled_query = out_.call(node, "scaled_query", "aten::mul.Scalar",
                                           {query, scale < 0 ? -root : root}, result_like(query));
    const ValueId scaled_key =
        out_.call(node, "scaled_key", "aten::mul.Scalar", {key, root}, result_like(key));
    NewResult transposed = result_like(key);
    std::swap(transposed.dims[transposed.dims.size() - 2], transposed.dims.back());
    const ValueId columns = out_.view(node, "columns", "aten::transpose.int",
                                      {scaled_key, AffineInt{-2, 0}, AffineInt{-1, 0}}, transposed);
    Dims dims = batch_dims(width, transposed.dims);
    dims.push_back(width[width.size() - 2]);
    dims.push_back(transposed.dims.back());
    return out_.call(
        node, "scores", "aten::matmul", {scaled_query, columns},
        {transposed.dtype, dims, out_[query].requires_grad || transposed.requires_grad});
  }

  ValueId mask(const Node& node, ValueId scores) {
    NewResult like = result_like(scores);
    const double never = -std::numeric_limits<double>::infinity();
    if (const auto* given = std::get_if<ValueId>(&argument(node, kMask))) {
      const Value& mask = graph_[*given];
      if (mask.dtype != DType::boolean) {
        like.requires_grad = like.requires_grad || mask.requires_grad;
        return out_.call(node, "masked", "aten::add.Tensor", {scores, *given, AffineInt{1, 0}},
                         like);
      }
      const ValueId left_out =
          out_.call(node, "left_out", "aten::logical_not", {*given}, {DType::boolean, mask.dims});
      return out_.call(node, "masked", "aten::masked_fill.Scalar", {scores, left_out, never}, like);
    }
    if (!is_true(node, kCausal)) return scores;
    const Dims square(like.dims.end() - 2, like.dims.end());
    const ValueId ones =
        out_.call(node, "ones", "aten::ones",
                  {square, torch_number(DType::boolean), None{}, Device{"cpu"}, false},
                  {DType::boolean, square});
    const ValueId later =
        out_.call(node, "later", "aten::triu", {ones, AffineInt{1, 0}}, {DType::boolean, square});
    return out_.call(node, "masked", "aten::masked_fill.Scalar", {scores, later, never}, like);
  }

  void finish(const Node& node, ValueId weights, ValueId value) {
    const ValueId result = node.outputs.front();
    const DType dtype = out_[value].dtype;
    if (dtype == graph_[result].dtype) {
      return out_.call_into(result, node, "aten::matmul", {weights, value});
    }
    const ValueId product = out_.call(node, "product", "aten::matmul", {weights, value},
                                      {dtype, graph_[result].dims, graph_[result].requires_grad});
    out_.call_into(result, node, "aten::to.dtype",
                   {product, torch_number(graph_[result].dtype), false, false, None{}});
  }

  const Graph& graph_;
  Rewriter out_;
};

}  // namespace

Graph explicit_draws(const Graph& graph) { return Explicit(graph).run(); }

}  // namespace rannc::ir
