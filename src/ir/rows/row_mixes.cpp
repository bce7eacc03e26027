#include <algorithm>

#include "ir/effects.h"
#include "ir/rows/row_call.h"
#include "ir/rows/row_inference.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
std::vector<bool> nodes_whose_mixing_matters(const Graph& graph, const RowInference& found) {
  std::vector<bool> needed(graph.values.size());  // by storage
  for (ValueId output : graph.outputs) needed[graph[output].storage.index] = true;

  std::vector<bool> matters(graph.nodes.size());
  for (uint32_t index = static_cast<uint32_t>(graph.nodes.size()); index-- > 0;) {
    const Node& node = graph[NodeId{index}];
    bool is_needed = !found.to_state[index].empty();
    for (ValueId output : node.outputs) {
      if (!output.valid() || !is_mixed(found.rows[output.index])) continue;
      is_needed = is_needed || needed[graph[output].storage.index];
    }
    if (!is_needed) continue;
    matters[index] = true;
    for (ValueId operand : graph.operands({index})) needed[graph[operand].storage.index] = true;
  }
  return matters;
}

std::vector<RowMix> row_mixes(const Graph& graph) {
  const RowInference found = infer(graph);
  const std::vector<bool> matters = nodes_whose_mixing_matters(graph, found);
  std::vector<RowMix> mixes;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!matters[index]) continue;
    if (!found.begins[index].empty()) mixes.push_back({{index}, found.begins[index]});
    if (!found.to_state[index].empty()) mixes.push_back({{index}, found.to_state[index]});
  }
  return mixes;
}

}  // namespace rannc::ir
