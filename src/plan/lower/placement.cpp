#include "plan/lower/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "rannc/ir/cut.h"
#include "rannc/ir/rows.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// By storage: the cloned nodes that write it. Who reads the storage runs them, as ir::extract()
/// does.
std::vector<std::vector<ir::NodeId>> cloned_writers(const ir::Graph& graph,
                                                    const Placement& placement) {
  std::vector<std::vector<ir::NodeId>> writers(graph.values.size());
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (placement.stage_of[index] != Placement::kCloned) continue;
    for (ir::ValueId written : graph.nodes[index].writes) {
      writers[graph[written].storage.index].push_back({index});
    }
  }
  return writers;
}

}  // namespace

Placement place(const Plan& plan, const ir::Graph& graph) {
  const std::vector<bool> placed_by_plan = ir::depends_on_rows(graph);
  std::unordered_map<std::string_view, uint32_t> node_of;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    node_of.emplace(graph.nodes[index].name, index);
  }

  Placement placement;
  placement.stage_of.assign(graph.nodes.size(), Placement::kCloned);
  placement.nodes.resize(plan.stages.size());
  for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
    for (const std::string& name : plan.stages[stage].nodes) {
      const auto found = node_of.find(name);
      if (found == node_of.end()) {
        throw PlanError(fmt::format("stage {} holds node '{}', which the graph '{}' does not have",
                                    stage, name, graph.name));
      }
      if (!placed_by_plan[found->second]) {
        throw PlanError(
            fmt::format("stage {} holds node '{}', which does not depend on the batch: such nodes "
                        "are cloned into "
                        "every stage that uses them and have no place in a plan",
                        stage, name));
      }
      int& stage_of = placement.stage_of[found->second];
      if (stage_of != Placement::kCloned) {
        throw PlanError(
            fmt::format("node '{}' is in stage {} and again in stage {}", name, stage_of, stage));
      }
      stage_of = stage;
    }
  }
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!placed_by_plan[index]) continue;
    if (placement.stage_of[index] == Placement::kCloned) {
      throw PlanError(fmt::format("node '{}' is in no stage", graph.nodes[index].name));
    }
    placement.nodes[placement.stage_of[index]].push_back({index});
  }
  return placement;
}

int producing_stage(const ir::Graph& graph, const Placement& placement, ir::ValueId value) {
  const ir::NodeId producer = graph[value].producer;
  return producer.valid() ? placement.stage_of[producer.index] : Placement::kCloned;
}

std::vector<std::vector<ir::ValueId>> taken_from_outside(const ir::Graph& graph,
                                                         const Placement& placement,
                                                         const std::vector<ir::ValueId>& outputs) {
  const int stages = static_cast<int>(placement.nodes.size());
  std::vector<std::vector<ir::ValueId>> taken(placement.nodes.size());
  std::vector<int> seen_by(graph.values.size(), -1);  // the last stage that looked at the value
  const auto writers = cloned_writers(graph, placement);
  const std::vector<ir::EffectOwner> effects = ir::effect_owners(graph);

  for (int stage = 0; stage < stages; ++stage) {
    std::vector<ir::ValueId> open;
    const auto look_at = [&](ir::ValueId value) {
      if (seen_by[value.index] == stage) return;
      seen_by[value.index] = stage;
      open.push_back(value);
    };
    for (ir::NodeId node : placement.nodes[stage]) {
      for (ir::ValueId operand : graph.operands(node)) look_at(operand);
    }
    for (const ir::EffectOwner& effect : effects) {
      if (placement.stage_of[effect.owner.index] != stage) continue;
      for (ir::ValueId operand : graph.operands(effect.effect)) look_at(operand);
    }
    if (stage + 1 == stages) {
      for (ir::ValueId output : outputs) {
        if (producing_stage(graph, placement, output) == Placement::kCloned) look_at(output);
      }
    }
    while (!open.empty()) {
      const ir::ValueId value = open.back();
      open.pop_back();
      for (ir::NodeId writer : writers[graph[value].storage.index]) {
        for (ir::ValueId operand : graph.operands(writer)) look_at(operand);
      }
      const ir::NodeId producer = graph[value].producer;
      if (!producer.valid()) {
        taken[stage].push_back(value);
      } else if (const int from = placement.stage_of[producer.index]; from == Placement::kCloned) {
        for (ir::ValueId operand : graph.operands(producer)) look_at(operand);
      } else if (from != stage) {
        taken[stage].push_back(value);
      }
    }
    std::ranges::sort(taken[stage]);
  }
  return taken;
}

}  // namespace rannc::plan
