#include "predict/stage_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include "rannc/ir/rows.h"
#include "rannc/util/error.h"

namespace rannc::predict {
namespace {

/// Where the nodes of a graph are in its profile, and in which stage.
struct Places {
  std::vector<int64_t> index;  // [node of the graph]: of the profile; -1: of no batch, not in it
  std::vector<size_t> stage;   // [node of the profile]
};

Places find_places(const plan::Plan& plan, const ir::Graph& graph,
                   const cost::GraphProfile& profile, std::vector<StageMemory>& stages) {
  std::unordered_map<std::string_view, uint32_t> index;
  for (uint32_t i = 0; i < profile.nodes.size(); ++i) index.emplace(profile.nodes[i].name, i);
  Places places{{}, std::vector<size_t>(profile.nodes.size(), 0)};
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (const std::string& name : plan.stages[stage].nodes) {
      const auto found = index.find(name);
      RANNC_CHECK(found != index.end(), fmt::format("node '{}' is not in the profile", name));
      stages[stage].nodes.push_back(found->second);
      places.stage[found->second] = stage;
    }
    std::ranges::sort(stages[stage].nodes);
  }
  for (const ir::Node& node : graph.nodes) {
    const auto found = index.find(node.name);
    places.index.push_back(found == index.end() ? -1 : static_cast<int64_t>(found->second));
  }
  return places;
}

/// What the micro-batches of a call share, of what their nodes save.
class SharedStorages {
 public:
  explicit SharedStorages(const ir::Graph& graph) : graph_(graph) {
    std::vector<bool> known;
    for (ir::ValueId input : graph.inputs) {
      known.push_back(graph[input].rows.kind == ir::RowKind::none);
    }
    nodes_ = ir::per_call(graph, known);
  }

  /// By what is known of a storage: a node that saves it reads a shared result of its size.
  [[nodiscard]] bool contains(const cost::SavedStorage& storage) const {
    const std::vector<ir::ValueId> operands = graph_.operands({storage.nodes.front()});
    return std::ranges::any_of(operands, [&](ir::ValueId operand) {
      const ir::NodeId producer = graph_[operand].producer;
      if (!producer.valid() || !nodes_[producer.index]) return false;
      const auto size = static_cast<double>(graph_[operand].bytes(0));
      return std::ranges::all_of(storage.bytes, [&](double bytes) { return bytes == size; });
    });
  }

 private:
  const ir::Graph& graph_;
  std::vector<bool> nodes_;
};

int segment_of(const StageMemory& stage, uint32_t node) {
  const auto place = std::ranges::lower_bound(stage.nodes, node) - stage.nodes.begin();
  return stage.segment_of[static_cast<size_t>(place)];
}

/// Which nodes of the stages run again, and what they take.
void add_segments(const plan::Plan& plan, const ir::Graph& graph, const Places& places,
                  std::vector<StageMemory>& stages) {
  for (size_t index = 0; index < stages.size(); ++index) {
    StageMemory& stage = stages[index];
    const plan::Stage& planned = plan.stages[index];
    stage.recompute = planned.recompute;
    stage.segment_of.assign(stage.nodes.size(), planned.recompute ? 0 : StageMemory::kKept);
    if (planned.recompute) stage.segments.push_back({stage.nodes.back()});
    std::unordered_map<std::string_view, int> segments;
    for (size_t segment = 0; segment < planned.segments.size(); ++segment) {
      for (const std::string& name : planned.segments[segment]) {
        segments.emplace(name, static_cast<int>(segment));
      }
      stage.segments.push_back({0});
    }
    if (segments.empty()) continue;
    std::set<uint32_t> taken;  // storages
    for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
      const auto found = segments.find(graph.nodes[node].name);
      if (found == segments.end()) continue;
      const auto place = static_cast<uint32_t>(places.index[node]);
      const auto at = std::ranges::lower_bound(stage.nodes, place) - stage.nodes.begin();
      stage.segment_of[static_cast<size_t>(at)] = found->second;
      StageMemory::Segment& segment = stage.segments[static_cast<size_t>(found->second)];
      segment.last = place;
      for (ir::ValueId operand : graph.operands({node})) {
        const ir::NodeId producer = graph[operand].producer;
        if (!producer.valid() || places.index[producer.index] < 0) continue;
        const auto own = segments.find(graph[producer].name);
        if (own != segments.end() && own->second == found->second) continue;
        // Views of one tensor keep one memory; it may be smaller than theirs, where it expands.
        const ir::ValueId storage = graph[operand].storage;
        if (!taken.insert(storage.index).second) continue;
        const bool is_result = graph[storage].kind == ir::ValueKind::result;
        segment.inputs.push_back(is_result ? storage : operand);
      }
    }
  }
}

void add_saved(const plan::Plan& plan, const std::vector<cost::SavedStorage>& saved,
               const ir::Graph& graph, const Places& places, std::vector<StageMemory>& stages) {
  const SharedStorages shared(graph);
  for (const cost::SavedStorage& storage : saved) {
    std::map<size_t, std::map<int, uint32_t>> holders;  // first node, by stage and segment
    for (uint32_t node : storage.nodes) {
      const int64_t place = places.index.at(node);
      if (place < 0) continue;  // of no batch: small, and in every stage
      const size_t stage = places.stage[static_cast<size_t>(place)];
      const auto index = static_cast<uint32_t>(place);
      holders[stage].emplace(segment_of(stages[stage], index), index);
    }
    const bool is_shared = shared.contains(storage);
    for (const auto& [stage, first] : holders) {
      // What all micro-batches share is held for the call, unless whole stages run again.
      const bool is_held = is_shared && plan.micro_batches > 1 && !stages[stage].recompute;
      if (first.contains(StageMemory::kKept) || is_held) {
        uint32_t first_user = first.begin()->second;
        for (const auto& [segment, node] : first) first_user = std::min(first_user, node);
        stages[stage].saved.push_back({first_user, storage.bytes, is_shared});
        continue;
      }
      for (const auto& [segment, node] : first) {
        stages[stage].saved.push_back({node, storage.bytes, is_shared, segment});
      }
    }
  }
  for (StageMemory& stage : stages) {
    std::ranges::stable_sort(stage.saved, {}, &StageMemory::Saved::first_user);
  }
}

void add_waiting(const ir::Graph& graph, const Places& places, std::vector<StageMemory>& stages) {
  const auto end = static_cast<int64_t>(places.stage.size());
  const std::vector<std::vector<ir::NodeId>> users = graph.users();
  for (uint32_t value = 0; value < graph.values.size(); ++value) {
    const ir::ValueId id{value};
    if (!graph[id].requires_grad || graph[id].kind != ir::ValueKind::result) continue;
    const int64_t producer = places.index.at(graph[id].producer.index);
    if (producer < 0) continue;
    std::map<size_t, int64_t> last;  // user, by stage
    for (ir::NodeId user : users[value]) {
      const int64_t place = places.index.at(user.index);
      if (place >= 0) last[places.stage[static_cast<size_t>(place)]] = place;
    }
    const size_t home = places.stage[static_cast<size_t>(producer)];
    const bool leaves =
        std::ranges::any_of(last, [&](const auto& user) { return user.first != home; }) ||
        std::ranges::count(graph.outputs, id) > 0;
    if (leaves) last[home] = end;
    for (const auto& [stage, user] : last) {
      stages[stage].waiting.push_back({stage == home ? producer : -1, user, id});
    }
  }
}

}  // namespace

std::vector<StageMemory> stage_memories(const plan::Plan& plan, const ir::Graph& graph,
                                        const cost::GraphProfile& profile,
                                        const std::vector<cost::SavedStorage>& saved) {
  std::vector<StageMemory> stages(plan.stages.size());
  const Places places = find_places(plan, graph, profile, stages);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (uint32_t node : stages[stage].nodes) {
      const std::vector<uint32_t>& used = profile.nodes[node].params;
      stages[stage].params.insert(used.begin(), used.end());
    }
  }
  add_segments(plan, graph, places, stages);
  add_saved(plan, saved, graph, places, stages);
  add_waiting(graph, places, stages);
  return stages;
}

}  // namespace rannc::predict
