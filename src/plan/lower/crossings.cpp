#include <algorithm>
#include <limits>
#include <tuple>

#include "plan/lower/placement.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

std::vector<Crossing> crossings(const Plan& plan, const ir::Graph& graph,
                                const std::vector<ir::ValueId>& returned) {
  const Placement placement = place(plan, graph);
  const auto taken = taken_from_outside(graph, placement, returned);
  const int stages = static_cast<int>(plan.stages.size());

  std::vector<Crossing> found;
  for (int stage = 0; stage < stages; ++stage) {
    for (ir::ValueId value : taken[stage]) {
      if (graph[value].kind == ir::ValueKind::result) {
        found.push_back({value, producing_stage(graph, placement, value), stage});
      } else if (graph[value].kind == ir::ValueKind::input &&
                 graph[value].rows.kind != ir::RowKind::none) {
        found.push_back({value, kUser, stage});
      }
    }
  }

  std::vector<ir::ValueId> outputs = returned;
  std::ranges::sort(outputs);
  outputs.erase(std::unique(outputs.begin(), outputs.end()), outputs.end());
  for (ir::ValueId output : outputs) {
    const int stage = producing_stage(graph, placement, output);
    found.push_back({output, stage == Placement::kCloned ? stages - 1 : stage, kUser});
  }

  std::ranges::sort(found, {}, [](const Crossing& crossing) {
    const int to = crossing.to_stage == kUser ? std::numeric_limits<int>::max() : crossing.to_stage;
    return std::tuple(crossing.from_stage, to, crossing.value);
  });
  return found;
}

std::vector<std::vector<ir::ValueId>> stage_outputs(const Plan& plan, const ir::Graph& graph,
                                                    const std::vector<ir::ValueId>& returned) {
  std::vector<std::vector<ir::ValueId>> outputs(plan.stages.size());
  for (const Crossing& crossing : crossings(plan, graph, returned)) {
    if (crossing.from_stage != kUser) outputs[crossing.from_stage].push_back(crossing.value);
  }
  for (std::vector<ir::ValueId>& values : outputs) {
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
  }
  return outputs;
}

}  // namespace rannc::plan
