#include "rannc/plan/groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "rannc/ir/cut.h"
#include "rannc/ir/shard.h"
#include "rannc/ir/text.h"
#include "rannc/plan/mesh.h"
#include "rannc/util/error.h"
#include "rannc/util/json.h"

namespace rannc::plan {

int places(const Plan& plan) { return plan.stages.empty() ? 1 : plan.stages.front().axes.places(); }

Plan plane_of(const Plan& plan) {
  const int size = places(plan);
  if (size == 1) return plan;
  Plan plane = plan;
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    const Stage& stage = plan.stages[index];
    if (stage.axes != plan.stages.front().axes) {
      throw PlanError(fmt::format("stage {} has another mesh than stage 0", index));
    }
    const int ranks = mesh_of(stage.ranks).replicas();
    if (ranks % size != 0) {
      throw PlanError(
          fmt::format("the mesh of stage {} has {} places, which do not divide its {} "
                      "ranks",
                      index, size, ranks));
    }
    const StageMesh mesh = mesh_of(stage);
    std::vector<Rank> groups;
    for (int replica = 0; replica < mesh.replicas(); ++replica) {
      const Rank first = mesh.rank(replica, 0);
      Rank next = first;
      const bool follow =
          first % size == 0 && std::ranges::all_of(mesh.ranks_of_replica(replica),
                                                   [&](Rank rank) { return rank == next++; });
      if (!follow) {
        throw PlanError(
            fmt::format("the {} ranks of a group of stage {} must follow each other, from a "
                        "multiple of {} on; rank {} does not begin one",
                        size, index, size, first));
      }
      groups.push_back(first / size);
    }
    plane.stages[index].ranks = std::move(groups);
    plane.stages[index].axes = {};
  }
  if (plane.made_for.world) plane.made_for.world = *plane.made_for.world / size;
  return plane;
}

namespace {

constexpr size_t kMostReasons = 8;

/// What the stage's notes say of its groups: src/plan/show/notes.h.
std::string note_of(const ir::Graph& stage, const ir::ShardedGraph& sharded,
                    const Grouping& grouping, int64_t rows) {
  std::set<std::string_view> cut;
  for (const ir::Part& part : sharded.parts) cut.insert(part.name);
  int64_t all_bytes = 0, cut_bytes = 0;
  for (const ir::Value& value : stage.values) {
    if (value.kind != ir::ValueKind::parameter) continue;
    all_bytes += value.bytes(0);
    if (cut.contains(value.name)) cut_bytes += value.bytes(0);
  }
  std::vector<std::string> whole;
  for (const auto& [node, factor] : sharded.gathered) {
    whole.push_back(fmt::format("{} ({}) needs all of '{}'", stage[node].op,
                                ir::module_place(stage[node]), factor));
  }
  for (const ir::Factor& factor : ir::factors(stage)) {
    if (!factor.why_not.empty()) {
      whole.push_back(fmt::format("'{}' is not cut: {}", factor.id, factor.why_not));
    }
  }
  const size_t more = whole.size() - std::min(whole.size(), kMostReasons);
  whole.resize(whole.size() - more);
  for (std::string& reason : whole) reason = json::quote(reason);
  const ir::Traffic sent = ir::all_traffic(sharded.graph, grouping.places, rows);
  const double ns = static_cast<double>(sent.messages) * grouping.latency_ns +
                    static_cast<double>(sent.bytes) * grouping.ns_per_byte;
  return fmt::format(
      "\"group\": {{\"parameter_bytes\": {}, \"cut_bytes\": {}, \"collective_bytes\": {}, "
      "\"collective_ns\": {:.0f}, \"whole\": [{}], \"more_whole\": {}}}",
      all_bytes, cut_bytes, sent.bytes, ns, fmt::join(whole, ", "), more);
}

/// `notes`, a JSON object or nothing, with one member more.
std::string with_member(std::string notes, const std::string& member) {
  const size_t end = notes.rfind('}');
  if (end == std::string::npos) return "{" + member + "}";
  const bool empty = notes.find_first_not_of(" \n", notes.find('{') + 1) == end;
  return notes.insert(end, (empty ? "" : ", ") + member);
}

}  // namespace

Plan of_groups(Plan plan, const ir::Graph& graph, const Grouping& grouping) {
  const int places = grouping.places;
  if (places == 1) return plan;
  const ir::Layouts layouts = ir::layouts(graph, places, grouping.factors);
  std::unordered_map<std::string_view, ir::NodeId> by_name;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    by_name.emplace(graph.nodes[index].name, ir::NodeId{index});
  }
  const auto outputs = stage_outputs(plan, graph, graph.outputs);
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    Stage& stage = plan.stages[index];
    std::vector<ir::NodeId> nodes;
    for (const std::string& name : stage.nodes) nodes.push_back(by_name.at(name));
    std::ranges::sort(nodes);
    const ir::Graph part = ir::extract(graph, nodes, outputs[index]);
    const ir::ShardedGraph sharded =
        ir::shard(part, places, 0, std::nullopt, layouts, grouping.sequence_parallel);
    stage.factors = sharded.factors;
    stage.sequence_parallel = grouping.sequence_parallel;
    const int64_t replicas = mesh_of(stage).replicas();
    const int64_t batch = plan.made_for.global_batch.value_or(plan.micro_batches);
    const int64_t rows = batch / std::max<int64_t>(plan.micro_batches * replicas, 1);
    stage.notes = with_member(std::move(stage.notes), note_of(part, sharded, grouping, rows));
    std::vector<Rank> ranks;
    for (const Rank group : stage.ranks) {
      for (int place = 0; place < places; ++place) ranks.push_back(group * places + place);
    }
    stage.ranks = std::move(ranks);
    stage.axes.y = places;
  }
  for (auto* of_ranks : {&plan.step.idle_ns, &plan.step.bubble_ns}) {
    std::vector<int64_t> all;
    for (const int64_t of_group : *of_ranks) {
      all.insert(all.end(), static_cast<size_t>(places), of_group);
    }
    *of_ranks = std::move(all);
  }
  if (plan.made_for.world) plan.made_for.world = *plan.made_for.world * places;
  plan.made_for.fingerprint = ir::fingerprint(graph);  // not that of the sizes of one place
  return plan;
}

std::vector<int64_t> rows_of_groups(const std::vector<int64_t>& local_rows, int places) {
  std::vector<int64_t> rows;
  for (size_t rank = 0; rank < local_rows.size(); ++rank) {
    if (rank % static_cast<size_t>(places) == 0) rows.push_back(0);
    rows.back() += local_rows[rank];
  }
  return rows;
}

ParameterHolders groups_of(const ParameterHolders& holders, int places) {
  ParameterHolders found;
  for (const auto& [name, ranks] : holders) {
    std::set<Rank> groups;
    for (const Rank rank : ranks) groups.insert(rank / places);
    found[name].assign(groups.begin(), groups.end());
  }
  return found;
}

}  // namespace rannc::plan
