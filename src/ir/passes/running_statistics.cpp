#include <algorithm>

#include "ir/passes/effects.h"
#include "ir/passes/row_call.h"
#include "rannc/ir/passes.h"

namespace rannc::ir {

std::vector<RunningStatistic> running_statistics(const Graph& graph) {
  // All of them take (input, weight, bias, running_mean, running_var, training, momentum, ...).
  const ArgumentsOnly no_rows;
  const RowRule batch_norm = find_row_rule("batch_norm");
  std::vector<RunningStatistic> statistics;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const Node& node = graph[NodeId{index}];
    if (node.kind != OpKind::dispatcher || !node.op.starts_with("aten::")) continue;
    const RowCall call(graph, {index}, no_rows);
    // instance_norm averages the statistics of its instances, so shares average to the whole.
    if (find_row_rule(call.base()) != batch_norm && call.base() != "instance_norm") continue;
    if (!call.boolean(5, false)) continue;
    const auto* momentum = std::get_if<double>(&call.argument(6));
    for (const size_t place : {size_t{3}, size_t{4}}) {
      const ValueId buffer = call.tensor(place);
      if (!buffer.valid() || !is_state(graph, buffer)) continue;
      statistics.push_back({.buffer = graph[buffer].storage,
                            .node = {index},
                            .momentum = momentum != nullptr
                                            ? *momentum
                                            : static_cast<double>(call.integer(6, 0).fixed)});
    }
  }
  return statistics;
}

}  // namespace rannc::ir
