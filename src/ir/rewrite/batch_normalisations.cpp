#include <fmt/format.h>

#include "ir/effects.h"
#include "ir/rows/row_call.h"
#include "rannc/ir/rewrites.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

enum class Family { none, batch, instance };

Family family_of(const RowCall& call) {
  if (call.family() == OperatorFamily::batch_norm) return Family::batch;
  return call.is(Trait::statistics) ? Family::instance : Family::none;
}

/// `visit(id, call, family)` for each normalisation that uses the statistics of the rows it gets.
/// All take (input, weight, bias, running_mean, running_var, training, momentum, ...), but for the
/// overload without running statistics.
template <typename Visit>
void for_each_in_training(const Graph& graph, const Visit& visit) {
  const ArgumentsOnly no_rows;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const Node& node = graph[NodeId{index}];
    if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::")) continue;
    const RowCall call(graph, {index}, no_rows);
    const Family family = family_of(call);
    if (family == Family::none) continue;
    if (!call.boolean(call.overload() == "no_stats" ? 3 : 5, false)) continue;
    visit(NodeId{index}, call, family);
  }
}

}  // namespace

std::vector<NodeId> batch_normalisations(const Graph& graph) {
  std::vector<NodeId> found;
  for_each_in_training(graph, [&](NodeId id, const RowCall&, Family family) {
    if (family == Family::batch) found.push_back(id);
  });
  return found;
}

std::vector<RunningStatistic> running_statistics(const Graph& graph) {
  std::vector<RunningStatistic> statistics;
  // instance_norm averages the statistics of its instances, so shares average to the whole.
  for_each_in_training(graph, [&](NodeId id, const RowCall& call, Family family) {
    if (call.overload() == "no_stats") return;
    const auto* momentum = std::get_if<double>(&call.argument(6));
    for (const size_t place : {size_t{3}, size_t{4}}) {
      const ValueId buffer = call.tensor(place);
      if (!buffer.valid() || !is_state(graph, buffer)) continue;
      statistics.push_back({.buffer = graph[buffer].storage,
                            .node = id,
                            .momentum = momentum != nullptr
                                            ? *momentum
                                            : static_cast<double>(call.integer(6, 0).fixed),
                            .of_each_row = family == Family::instance});
    }
  });
  return statistics;
}

Graph whole_batch_statistics(const Graph& graph) {
  Graph marked = graph;
  for (NodeId id : batch_normalisations(graph)) {
    Node& node = marked[id];
    if (node.op != "aten::batch_norm") {
      throw TraceError(fmt::format(
          "sync_batch_norm: {} (node '{}', module '{}', {}) returns the statistics of its rows, "
          "which only torch.nn.functional.batch_norm leaves to the whole batch.\n  Call that "
          "instead, or leave sync_batch_norm off.",
          node.op, node.name, node.module, place(node.source)));
    }
    node.whole_batch = true;
  }
  return marked;
}

}  // namespace rannc::ir
