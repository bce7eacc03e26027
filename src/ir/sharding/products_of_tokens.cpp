#include "ir/sharding/products_of_tokens.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "ir/rewrite/rewriter.h"
#include "rannc/ir/operators.h"

namespace rannc::ir::sharding {
namespace {

bool is_view(const Node& node) {
  static const std::set<std::string_view> kViews{"view", "reshape", "_unsafe_view", "flatten"};
  return node.kind == OpKind::dispatcher && kViews.contains(base_name(known_op(node)));
}

bool is_one(const Node& node, size_t index) {
  if (index >= node.inputs.size()) return true;
  const Argument& value = node.inputs[index];
  if (const auto* number = std::get_if<AffineInt>(&value)) return *number == AffineInt{1, 0};
  if (const auto* number = std::get_if<double>(&value)) return *number == 1.0;
  return std::holds_alternative<None>(value);
}

/// Whether these are alike but for their last dimension, and there is one more in front of it.
bool same_tokens(const Value& one, const Value& other) {
  return one.dims.size() >= 3 && one.dims.size() == other.dims.size() &&
         std::equal(one.dims.begin(), one.dims.end() - 1, other.dims.begin());
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), users_(graph.users()) {
    for (const Node& node : graph.nodes) {
      for (const ValueId value : node.writes) written_.insert(graph[value].storage);
    }
    for (const ValueId output : graph.outputs) returned_.insert(output);
  }

  /// The view behind the product `id`, where the three can be one.
  [[nodiscard]] std::optional<NodeId> view_behind(NodeId id) const {
    const Node& product = graph_[id];
    if (product.kind != OpKind::dispatcher || base_name(known_op(product)) != "addmm") return {};
    if (!is_one(product, 3) || !is_one(product, 4)) return {};
    const auto* bias = std::get_if<ValueId>(&product.inputs[0]);
    const auto* flat = std::get_if<ValueId>(&product.inputs[1]);
    if (bias == nullptr || flat == nullptr || graph_[*bias].dims.size() != 1) return {};
    const NodeId before = graph_[*flat].producer;
    if (!before.valid() || !is_view(graph_[before]) || !used_once(*flat)) return {};
    const ValueId sum = product.outputs.front();
    if (!used_once(sum) || written_.contains(graph_[sum].storage)) return {};
    const NodeId behind = users_[sum.index].front();
    if (!is_view(graph_[behind])) return {};
    const Value& from = graph_[std::get<ValueId>(graph_[before].inputs[0])];
    const Value& to = graph_[graph_[behind].outputs.front()];
    const bool same_columns =
        from.dims.back() == graph_[*flat].dims.back() && to.dims.back() == graph_[sum].dims.back();
    if (graph_[*flat].dims.size() != 2 || !same_columns || !same_tokens(from, to)) return {};
    return behind;
  }

 private:
  [[nodiscard]] bool used_once(ValueId value) const {
    return users_[value.index].size() == 1 && !returned_.contains(value);
  }

  const Graph& graph_;
  const std::vector<std::vector<NodeId>> users_;
  std::set<ValueId> written_;
  std::set<ValueId> returned_;
};

void join(Graph& graph, NodeId id, NodeId behind) {
  Node& product = graph.nodes[id.index];
  Node& view = graph.nodes[behind.index];
  const ValueId bias = std::get<ValueId>(product.inputs[0]);
  const ValueId flat = std::get<ValueId>(product.inputs[1]);
  const ValueId weight = std::get<ValueId>(product.inputs[2]);
  Node& before = graph.nodes[graph[flat].producer.index];
  const ValueId from = std::get<ValueId>(before.inputs[0]);
  const ValueId sum = product.outputs.front();
  const ValueId to = view.outputs.front();

  set_operator(before, "aten::alias");
  before.inputs = {from};
  graph[flat].dims = graph[from].dims;
  graph[flat].rows = graph[from].rows;
  set_operator(product, "aten::matmul");
  product.inputs = {flat, weight};
  graph[sum].dims = graph[to].dims;
  graph[sum].rows = graph[to].rows;
  set_operator(view, "aten::add.Tensor");
  view.inputs = {sum, bias, AffineInt{1, 0}};
  for (Value& value : graph.values) {  // what shares the memory of the result
    if (value.storage == sum && &value != &graph[sum]) value.storage = to;
  }
}

}  // namespace

Graph products_of_tokens(const Graph& graph) {
  Graph made = graph;
  const Finder finder(graph);
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (const auto behind = finder.view_behind(NodeId{index})) join(made, NodeId{index}, *behind);
  }
  return made;
}

}  // namespace rannc::ir::sharding
