#include <fmt/format.h>

#include "ir/cut/subgraph.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/rows.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

/// Marks nodes, and the row-free nodes that marked nodes need, however far back.
class Cloner {
 public:
  Cloner(const Graph& graph, std::vector<bool> dependent)
      : graph_(graph),
        dependent_(std::move(dependent)),
        marked_(graph.nodes.size()),
        writers_(graph.values.size()),
        met_(graph.values.size()) {
    for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
      if (dependent_[index]) continue;
      for (ValueId written : graph_[NodeId{index}].writes) {
        writers_[graph_[written].storage.index].push_back({index});
      }
    }
  }

  void mark(NodeId node) {
    if (marked_[node.index]) return;
    marked_[node.index] = true;
    pending_.push_back(node);
  }
  // A read sees the writes to its storage, and state must change alike wherever it is held.
  void need(ValueId value) {
    const NodeId producer = graph_[value].producer;
    if (producer.valid() && !dependent_[producer.index]) mark(producer);
    const uint32_t storage = graph_[value].storage.index;
    if (met_[storage]) return;
    met_[storage] = true;
    for (NodeId writer : writers_[storage]) mark(writer);
  }
  const std::vector<bool>& close() {
    while (!pending_.empty()) {
      const NodeId node = pending_.back();
      pending_.pop_back();
      for (ValueId operand : graph_.operands(node)) need(operand);
      for (ValueId written : graph_[node].writes) need(written);
    }
    return marked_;
  }

 private:
  const Graph& graph_;
  std::vector<bool> dependent_;
  std::vector<bool> marked_;
  std::vector<std::vector<NodeId>> writers_;  // row-free ones, by storage
  std::vector<bool> met_;                     // by storage
  std::vector<NodeId> pending_;
};

}  // namespace

Graph extract(const Graph& graph, const std::vector<NodeId>& nodes,
              const std::vector<ValueId>& keep) {
  std::vector<bool> chosen(graph.nodes.size());
  Cloner cloner(graph, depends_on_rows(graph));
  for (NodeId node : nodes) {
    RANNC_CHECK(node.index < graph.nodes.size(),
                fmt::format("node {} is asked of graph '{}', which has {} nodes", node.index,
                            graph.name, graph.nodes.size()));
    chosen[node.index] = true;
    cloner.mark(node);
  }
  for (const EffectOwner& owner : effect_owners(graph)) {
    if (chosen[owner.owner.index]) cloner.mark(owner.effect);
  }
  for (ValueId value : keep) cloner.need(value);
  return subgraph(graph, cloner.close(), {}, keep);
}

}  // namespace rannc::ir
