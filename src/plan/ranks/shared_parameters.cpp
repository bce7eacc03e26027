#include "rannc/plan/ranks/shared_parameters.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/lower/placement.h"
#include "rannc/plan/mesh.h"
#include "rannc/plan/program.h"

namespace rannc::plan {
namespace {

/// Whether a tensor is a parameter that can be cut, and has rows for all replicas.
bool has_parts(const ir::Value& value, ir::ValueId id, size_t replicas) {
  if (value.kind != ir::ValueKind::parameter || value.storage != id || value.on_host) return false;
  if (!ir::is_floating(value.dtype) || value.dims.empty()) return false;
  const int64_t rows = value.dims.front().fixed;
  const auto others = static_cast<int64_t>(replicas) - 1;
  return others * rows_of_replica(rows, replicas) < rows && value.bytes(0) > 0;
}

/// Storages that a node writes, that leave a stage, or that several tensors of the model have in
/// common.
std::set<ir::ValueId> touched(const Plan& plan, const ir::Graph& graph) {
  std::set<ir::ValueId> found;
  for (const auto& outputs : stage_outputs(plan, graph, graph.outputs)) {
    for (ir::ValueId value : outputs) found.insert(graph[value].storage);
  }
  for (const ir::Node& node : graph.nodes) {
    for (ir::ValueId value : node.writes) found.insert(graph[value].storage);
  }
  for (ir::ValueId value : graph.outputs) found.insert(graph[value].storage);
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    const ir::Value& value = graph.values[index];
    if (value.kind != ir::ValueKind::result && value.storage != ir::ValueId{index}) {
      found.insert(value.storage);
    }
  }
  return found;
}

}  // namespace

int64_t rows_of_replica(int64_t rows, size_t replicas) {
  const auto count = static_cast<int64_t>(replicas);
  return (rows + count - 1) / count;
}

Plan share_parameters(Plan plan, const ir::Graph& graph, const std::vector<std::string>& except) {
  const auto taken = taken_from_outside(graph, place(plan, graph), graph.outputs);
  std::map<ir::ValueId, int> users;
  for (const std::vector<ir::ValueId>& values : taken) {
    for (ir::ValueId value : values) ++users[value];
  }
  const std::set<ir::ValueId> left_out = touched(plan, graph);
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    Stage& stage = plan.stages[index];
    const auto replicas = static_cast<size_t>(mesh_of(stage).replicas());
    stage.shared.clear();
    for (ir::ValueId id : taken[index]) {
      const ir::Value& value = graph[id];
      if (replicas < 2 || users[id] > 1 || left_out.contains(id)) continue;
      if (!has_parts(value, id, replicas) || std::ranges::count(except, value.name)) continue;
      stage.shared.push_back(value.name);
    }
    stage.shares_parameters = !stage.shared.empty();
  }
  return plan;
}

Plan without_shared_parameters(Plan plan) {
  for (Stage& stage : plan.stages) {
    stage.shares_parameters = false;
    stage.shared.clear();
  }
  return plan;
}

}  // namespace rannc::plan
