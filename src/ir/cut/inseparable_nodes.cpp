#include <algorithm>
#include <numeric>

#include "ir/rows/row_inference.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

/// Disjoint sets of nodes, with path halving.
class DisjointSets {
 public:
  explicit DisjointSets(size_t size) : parents_(size) {
    std::iota(parents_.begin(), parents_.end(), 0U);
  }
  uint32_t find(uint32_t node) {
    while (parents_[node] != node) node = parents_[node] = parents_[parents_[node]];
    return node;
  }
  // The smaller root wins, so that sets come out in graph order.
  void unite(uint32_t a, uint32_t b) {
    a = find(a);
    b = find(b);
    parents_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<uint32_t> parents_;
};

/// For each storage, the end of the nodes that must see it in place; 0 when no row-dependent node
/// writes it.
std::vector<uint32_t> ends_of_writing(const Graph& graph, const std::vector<bool>& dependent) {
  std::vector<uint32_t> ends(graph.values.size());
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!dependent[index]) continue;
    for (ValueId written : graph[NodeId{index}].writes) {
      const ValueId storage = graph[written].storage;
      // A result is final after its last write, and later readers may receive a copy. Inputs and
      // state are handed to each stage anew, so all that touch them must see the same tensor.
      const bool becomes_final = graph[storage].kind == ValueKind::result;
      ends[storage.index] = becomes_final ? index + 1 : static_cast<uint32_t>(graph.nodes.size());
    }
  }
  return ends;
}

/// For each value, whether it cannot be dealt out, although shares of the batch may be computed
/// each on its own: whoever reads it must do so where it is made.
std::vector<bool> stay_where_they_are(const Graph& graph, const std::vector<bool>& dependent) {
  const RowInference found = infer(graph);
  const std::vector<bool> matters = nodes_whose_mixing_matters(graph, found);
  std::vector<bool> stay(graph.values.size());
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!dependent[index] || matters[index]) continue;
    for (ValueId output : graph[NodeId{index}].outputs) {
      if (output.valid()) stay[output.index] = found.rows[output.index].kind == RowKind::mixed;
    }
  }
  return stay;
}

}  // namespace

std::vector<std::vector<NodeId>> inseparable_nodes(const Graph& graph) {
  const std::vector<bool> dependent = depends_on_rows(graph);
  const std::vector<uint32_t> ends = ends_of_writing(graph, dependent);

  DisjointSets sets(graph.nodes.size());
  const std::vector<bool> stays = stay_where_they_are(graph, dependent);
  std::vector<NodeId> first(graph.values.size());  // by storage
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!dependent[index]) continue;
    const auto touch = [&](ValueId id) {
      if (!id.valid()) return;
      const uint32_t storage = graph[id].storage.index;
      if (index >= ends[storage]) return;
      if (!first[storage].valid()) first[storage] = {index};
      sets.unite(first[storage].index, index);
    };
    for (ValueId operand : graph.operands({index})) {
      if (stays[operand.index]) sets.unite(graph[operand].producer.index, index);
    }
    std::ranges::for_each(graph.operands({index}), touch);
    std::ranges::for_each(graph[NodeId{index}].outputs, touch);
    std::ranges::for_each(graph[NodeId{index}].writes, touch);
  }

  std::vector<std::vector<NodeId>> members(graph.nodes.size());
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    members[sets.find(index)].push_back({index});
  }
  std::erase_if(members, [](const auto& set) { return set.size() < 2; });
  return members;
}

}  // namespace rannc::ir
