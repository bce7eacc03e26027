#include "runtime/call/rank_part.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "rannc/ir/cut.h"
#include "rannc/ir/draws.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/plan/mesh.h"
#include "rannc/plan/program.h"
#include "rannc/plan/ranks/shared_parameters.h"
#include "rannc/util/error.h"
#include "runtime/group/group.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {
namespace {

bool is_scalar(const ir::Value& value) {
  return value.rows.kind == ir::RowKind::mean || value.rows.kind == ir::RowKind::sum;
}

std::vector<ir::NodeId> find_nodes(const std::vector<std::string>& names,
                                   const std::unordered_map<std::string, ir::NodeId>& by_name) {
  std::vector<ir::NodeId> nodes;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      throw PlanError(c10::str("the plan names node '", name, "', which the model does not have"));
    }
    nodes.push_back(found->second);
  }
  std::ranges::sort(nodes);
  return nodes;
}

std::unordered_set<std::string> names_of(const ir::Graph& graph,
                                         const std::vector<ir::ValueId>& values) {
  std::unordered_set<std::string> names;
  for (ir::ValueId value : values) names.insert(graph[value].name);
  return names;
}

}  // namespace

size_t place_of(const std::vector<ir::ValueId>& values, ir::ValueId value) {
  const auto found = std::ranges::find(values, value);
  RANNC_CHECK(found != values.end(), c10::str("value ", value.index));
  return static_cast<size_t>(found - values.begin());
}

RankPart::RankPart(const ir::Graph& model, const ops::Objects& objects, const plan::Plan& plan,
                   std::vector<ir::ValueId> outputs,
                   std::shared_ptr<comm::Communicator> communicator, c10::Device on_device,
                   const Options& options, const RankPart* whole)
    : graph(model),
      comm(std::move(communicator)),
      device(on_device),
      stream(options.stream),
      rank(comm->rank()),
      prelude(options.preludes, objects, on_device),
      outside_sum(options.outside_sum),
      show_values(options.show_values),
      float32_sums(options.float32_sums),
      draw_steps(options.draws),
      from_generators(!draw_steps && std::ranges::any_of(model.nodes, &ir::draws)),
      output_values(std::move(outputs)) {
  plan::verify(plan, graph, comm->size());
  for (ir::ValueId output : output_values) {
    if (is_scalar(graph[output])) scalar_outputs.push_back(output);
  }
  for (ir::ValueId input : graph.inputs) {
    if (graph[input].rows.kind != ir::RowKind::none || !graph[input].requires_grad) continue;
    throw PlanError(
        c10::str("argument '", graph[input].name, "' requires a gradient, but does not ",
                 "hold rows of the batch.\n  Make it a parameter of the model, or ", "detach it."));
  }
  add_stages(objects, plan, options);
  find_parts();
  name_state(whole, options);
  find_gradients(plan);
}

const LocalStage& RankPart::local(int stage) const {
  const LocalStage& local = stages[static_cast<size_t>(stage)];
  RANNC_CHECK(local.stage, c10::str("stage ", stage, " is not on rank ", rank));
  return local;
}

std::vector<std::shared_ptr<ParameterGathers>> RankPart::gathers_of(
    const std::vector<at::Tensor>& parameters) const {
  std::vector<std::shared_ptr<ParameterGathers>> made(stages.size());
  for (size_t stage = 0; stage < made.size(); ++stage) {
    const LocalStage& local = stages[stage];
    if (!local.stage || local.stage->shared().empty()) continue;
    std::vector<at::Tensor> parts;
    std::vector<std::string> names;
    for (const SharedParameters::Parameter& shared : local.stage->shared().parameters) {
      const size_t parameter = local.state[shared.state].index;
      parts.push_back(parameters[parameter].detach());
      names.push_back(parameter_names[parameter]);
    }
    made[stage] = std::make_shared<ParameterGathers>(local.stage->shared(), local.stage->sharing(),
                                                     static_cast<int>(stage), std::move(parts),
                                                     std::move(names), comm, stream);
  }
  return made;
}

size_t RankPart::buffer_place(const std::string& name) const {
  const auto found = std::ranges::find(buffer_names, name);
  RANNC_CHECK(found != buffer_names.end(), name);
  return static_cast<size_t>(found - buffer_names.begin());
}

namespace {

/// Of parameters and buffers that several stages use: cut as in the first one that cuts it.
ir::Layouts layouts_of_shared(const std::vector<ir::Graph>& stages, const plan::Plan& plan,
                              int ways) {
  std::map<std::string, std::vector<size_t>> users;
  for (size_t index = 0; index < stages.size(); ++index) {
    for (const ir::Value& value : stages[index].values) {
      if (value.kind == ir::ValueKind::parameter || value.kind == ir::ValueKind::buffer) {
        users[value.name].push_back(index);
      }
    }
  }
  std::erase_if(users, [](const auto& each) { return each.second.size() < 2; });
  ir::Layouts layouts;
  if (users.empty()) return layouts;
  std::vector<std::vector<ir::ShardedGraph>> places(stages.size());
  for (size_t index = 0; index < stages.size(); ++index) {
    const std::vector<std::string>& factors = plan.stages[index].factors;
    for (int place = 0; place < ways; ++place) {
      places[index].push_back(ir::shard(stages[index], ways, place,
                                        factors.empty() ? std::nullopt : std::optional(factors)));
    }
  }
  for (const auto& [name, stages_of_name] : users) {
    ir::Layout& layout = layouts[name];
    for (const size_t index : stages_of_name) {
      if (!layout.stretches.empty()) break;
      for (const ir::ShardedGraph& place : places[index]) {
        const auto found = std::ranges::find(place.parts, name, &ir::Part::name);
        if (found == place.parts.end()) break;
        layout.dim = found->dim;
        layout.stretches.push_back(found->stretches);
      }
    }
  }
  return layouts;
}

}  // namespace

Sharing RankPart::sharing_of(const plan::Stage& stage, int64_t bucket_bytes) const {
  Sharing sharing{.names = stage.shared, .ranks = stage.ranks, .bucket_bytes = bucket_bytes};
  std::ranges::sort(sharing.ranks);
  sharing.place = static_cast<size_t>(
      std::ranges::count_if(sharing.ranks, [this](int other) { return other < rank; }));
  return sharing;
}

/// The parts that this rank keeps of what the replicas of a stage of its share.
void RankPart::add_shared(const plan::Stage& stage) {
  const Sharing sharing = sharing_of(stage, 0);
  for (const std::string& name : stage.shared) {
    std::vector<int64_t> sizes = sizes_at(graph[graph.find_value(name).value()], 0);
    const int64_t rows = sizes.front();
    const int64_t share = plan::rows_of_replica(rows, sharing.ranks.size());
    const int64_t begin = share * static_cast<int64_t>(sharing.place);
    sizes.front() = std::min(share, rows - begin);
    parts.push_back({.name = name, .dim = 0, .stretches = {{begin, sizes.front()}}});
    part_sizes.emplace(name, std::move(sizes));
  }
}

void RankPart::add_stages(const ops::Objects& objects, const plan::Plan& plan,
                          const Options& options) {
  const std::shared_ptr<const Group>& group = options.group;
  std::unordered_map<std::string, ir::NodeId> by_name;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    by_name.emplace(graph.nodes[index].name, ir::NodeId{index});
  }
  const std::unordered_set<std::string> row_free = names_of(graph, ir::row_free_state(graph));
  const std::vector<std::vector<ir::ValueId>> outputs =
      plan::stage_outputs(plan, graph, output_values);
  ir::Layouts held = options.held;
  if (group && held.empty()) {
    std::vector<ir::Graph> graphs;
    for (size_t index = 0; plan.stages.size() > 1 && index < plan.stages.size(); ++index) {
      graphs.push_back(
          ir::extract(graph, find_nodes(plan.stages[index].nodes, by_name), outputs[index]));
    }
    held = layouts_of_shared(graphs, plan, group->size());
    for (const std::string& name : prelude.state_names()) held[name] = {};  // computed on the whole
  }
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    const plan::Stage& stage = plan.stages[index];
    LocalStage local;
    const plan::StageMesh mesh = plan::mesh_of(stage);
    if (const std::optional<int> replica = mesh.replica_of(rank)) {
      RunAgain again{.all = stage.recompute};
      for (const std::vector<std::string>& segment : stage.segments) {
        again.segments.push_back(find_nodes(segment, by_name));
      }
      local.stage = std::make_unique<Stage>(
          graph, find_nodes(stage.nodes, by_name), outputs[index], objects, device, again, group,
          stage.factors, held, stage.sequence_parallel, sharing_of(stage, options.bucket_bytes));
      add_shared(stage);
      local.replica = *replica;
      local.recompute = stage.recompute;
      const std::vector<std::string>& state = local.stage->state_names();
      for (size_t index = 0; index < state.size(); ++index) {
        if (row_free.contains(state[index])) local.row_free.push_back(index);
      }
      local.statistics =
          RunningStatistics(local.stage->graph(), local.stage->state_names(), mesh.replicas());
    }
    stages.push_back(std::move(local));
  }
}

/// Of which state this rank takes a part.
void RankPart::find_parts() {
  for (const LocalStage& local : stages) {
    if (!local.stage) continue;
    for (const ir::Part& part : local.stage->parts()) {
      const auto known = std::ranges::find(parts, part.name, &ir::Part::name);
      const bool is_new = known == parts.end();
      const bool alike = is_new || known->stretches == part.stretches;
      RANNC_CHECK(alike, c10::str(part.name, " is cut differently by two stages"));
      if (is_new) parts.push_back(part);
    }
    const ir::Graph& stage = local.stage->graph();
    for (const ir::Part& part : local.stage->parts()) {
      part_sizes.emplace(part.name, sizes_at(stage[stage.find_value(part.name).value()], 0));
    }
  }
}

void RankPart::name_state(const RankPart* whole, const Options& options) {
  const std::vector<std::string> first = prelude.state_names();
  std::unordered_set<std::string> used(first.begin(), first.end());
  if (whole) {
    used.insert(whole->parameter_names.begin(), whole->parameter_names.end());
    used.insert(whole->buffer_names.begin(), whole->buffer_names.end());
  }
  for (const LocalStage& local : stages) {
    if (!local.stage) continue;
    used.insert(local.stage->state_names().begin(), local.stage->state_names().end());
  }

  for (const auto& [name, ranks] : options.holders) {
    if (std::ranges::find(ranks, rank) != ranks.end()) used.insert(name);
  }

  std::unordered_map<std::string, StateSource> sources;
  parameter_places.resize(graph.values.size());
  for (size_t index = 0; index < graph.values.size(); ++index) {
    const ir::Value& value = graph.values[index];
    if (!used.contains(value.name)) continue;
    const bool buffer = value.kind == ir::ValueKind::buffer;
    std::vector<std::string>& names = buffer ? buffer_names : parameter_names;
    sources[value.name] = {buffer, names.size()};
    if (!buffer) parameter_places[index] = names.size();
    names.push_back(value.name);
    std::vector<int64_t> sizes = sizes_at(value, 0);
    const auto part = part_sizes.find(value.name);
    const auto layout = options.held.find(value.name);
    if (part != part_sizes.end()) {
      sizes = part->second;
    } else if (layout != options.held.end() && !layout->second.stretches.empty()) {
      int64_t& size = sizes[static_cast<size_t>(layout->second.dim)];
      size = 0;
      for (const auto& each : layout->second.stretches[static_cast<size_t>(options.group->place())])
        size += each.size;
    }
    (buffer ? buffer_sizes : parameter_sizes).push_back(std::move(sizes));
  }

  for (LocalStage& local : stages) {
    if (!local.stage) continue;
    for (const std::string& name : local.stage->state_names()) {
      RANNC_CHECK(sources.contains(name), name);
      local.state.push_back(sources[name]);
    }
  }
}

void RankPart::find_gradients(const plan::Plan& plan) {
  for (LocalStage& local : stages) {
    if (local.stage) local.input_requires_grad.assign(local.stage->inputs().size(), false);
  }
  for (const plan::Crossing& crossing : plan::crossings(plan, graph, output_values)) {
    const ir::Value& value = graph[crossing.value];
    if (crossing.to_stage == plan::kUser || !value.requires_grad) continue;
    LocalStage& local = stages[static_cast<size_t>(crossing.to_stage)];
    if (!local.stage || !ir::is_floating(value.dtype)) continue;
    const int input = local.stage->find_input(crossing.value);
    RANNC_CHECK(input >= 0, value.name);
    local.input_requires_grad[static_cast<size_t>(input)] = true;
  }
}

}  // namespace rannc::runtime
