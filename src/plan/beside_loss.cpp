#include "rannc/plan/outside_loss/beside_loss.h"

#include "rannc/ir/cut.h"
#include "rannc/plan/outputs.h"

namespace rannc::plan {

std::optional<BesideLoss> trained_beside(const ir::Graph& graph, ir::ValueId loss,
                                         const std::vector<ir::ValueId>& outputs) {
  const std::vector<bool> of_loss = ir::leading_to(graph, {loss});
  std::optional<BesideLoss> found;
  for (ir::ValueId output : outputs) {
    const ir::Value& value = graph[output];
    if (output == loss || value.dims.empty() || !value.requires_grad || !can_be_dealt_out(value))
      continue;
    const std::vector<bool> of_output = ir::leading_to(graph, {output});
    bool has_own_input = false;  // the loss: labels, say
    for (uint32_t index = 0; index < graph.values.size(); ++index) {
      const ir::Value& each = graph.values[index];
      if (each.kind == ir::ValueKind::parameter && each.requires_grad && of_output[index] &&
          !of_loss[index])
        return BesideLoss{output, each.name};
      has_own_input |= each.kind == ir::ValueKind::input && of_loss[index] && !of_output[index];
    }
    if (!has_own_input && !found) found = BesideLoss{output, ""};
  }
  return found;
}

}  // namespace rannc::plan
