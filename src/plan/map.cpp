#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "plan/lower/placement.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/rows.h"
#include "rannc/plan/plan.h"

namespace rannc::plan {
namespace {

constexpr int kNoStage = -1;

/// The earliest stage that uses each parameter or buffer, by name.
std::unordered_map<std::string_view, int> homes_of_state(const ir::Graph& graph,
                                                         const Placement& placement) {
  std::unordered_map<std::string_view, int> homes;
  const auto taken = taken_from_outside(graph, placement, graph.outputs);
  for (int stage = 0; stage < static_cast<int>(taken.size()); ++stage) {
    for (ir::ValueId value : taken[stage]) {
      const ir::ValueKind kind = graph[value].kind;
      if (kind != ir::ValueKind::parameter && kind != ir::ValueKind::buffer) continue;
      homes.emplace(graph[value].name, stage);
    }
  }
  return homes;
}

/// Places the row-dependent nodes of one graph so that no value flows backwards.
class Mapper {
 public:
  explicit Mapper(const ir::Graph& graph)
      : graph_(graph),
        placed_(ir::depends_on_rows(graph)),
        stages_(graph.nodes.size(), kNoStage),
        users_(graph.users()),
        sets_(ir::inseparable_nodes(graph)) {}

  void place_by_name(const ir::Graph& from, const Placement& placement) {
    std::unordered_map<std::string_view, int> stage_of;
    for (uint32_t index = 0; index < from.nodes.size(); ++index) {
      stage_of.emplace(from.nodes[index].name, placement.stage_of[index]);
    }
    for_each_node([&](uint32_t index) {
      const auto found = stage_of.find(graph_.nodes[index].name);
      if (found != stage_of.end()) stages_[index] = found->second;
    });
  }

  /// `homes`: stages of parameters and buffers. Seen through cloned nodes, such as a transpose.
  void place_by_state(const std::unordered_map<std::string_view, int>& homes) {
    std::vector<int> home_of(graph_.values.size(), kNoStage);
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const auto found = homes.find(graph_.values[index].name);
      if (found != homes.end()) home_of[index] = found->second;
    }
    for (uint32_t index = 0; index < stages_.size(); ++index) {
      int home = kNoStage;
      for (ir::ValueId operand : graph_.operands({index})) {
        home = std::max(home, home_of[operand.index]);
      }
      if (placed_[index]) {
        if (stages_[index] == kNoStage) stages_[index] = home;
        continue;
      }
      for (ir::ValueId output : graph_.nodes[index].outputs) {
        if (output.valid()) home_of[output.index] = home;
      }
    }
  }

  /// What is still without a stage goes with its first known user, else with what it uses.
  void place_by_neighbours() {
    for (uint32_t index = static_cast<uint32_t>(stages_.size()); index-- > 0;) {
      if (!placed_[index] || stages_[index] != kNoStage) continue;
      for (ir::ValueId output : graph_.nodes[index].outputs) {
        if (!output.valid()) continue;
        for (ir::NodeId user : users_[output.index]) {
          const int stage = stages_[user.index];
          if (stage == kNoStage) continue;
          stages_[index] = stages_[index] == kNoStage ? stage : std::min(stages_[index], stage);
        }
      }
    }
    for_each_node([&](uint32_t index) {
      if (stages_[index] == kNoStage) stages_[index] = std::max(0, latest_operand(index));
    });
  }

  /// Moves nodes to later stages until every value flows forward and sets are whole. Ends, because
  /// stages only rise, and the last stage holds everything that must go there.
  void settle() {
    for (bool changed = true; changed;) {
      changed = false;
      for_each_node([&](uint32_t index) {
        const int needed = latest_operand(index);
        if (needed <= stages_[index]) return;
        stages_[index] = needed;
        changed = true;
      });
      for (const std::vector<ir::NodeId>& set : sets_) {
        int latest = 0;
        for (ir::NodeId node : set) latest = std::max(latest, stages_[node.index]);
        for (ir::NodeId node : set) {
          changed = changed || stages_[node.index] != latest;
          stages_[node.index] = latest;
        }
      }
    }
  }

  [[nodiscard]] int stage_of(uint32_t node) const { return stages_[node]; }
  /// Inseparable nodes of a stage, by their places in it.
  [[nodiscard]] std::vector<std::vector<size_t>> sets_in(int stage) const {
    std::vector<size_t> places(stages_.size());
    size_t next = 0;
    for (uint32_t index = 0; index < stages_.size(); ++index) {
      if (placed_[index] && stages_[index] == stage) places[index] = next++;
    }
    std::vector<std::vector<size_t>> found;
    for (const std::vector<ir::NodeId>& set : sets_) {
      if (stages_[set.front().index] != stage) continue;
      std::vector<size_t>& of_set = found.emplace_back();
      for (ir::NodeId node : set) of_set.push_back(places[node.index]);
    }
    return found;
  }
  [[nodiscard]] bool is_placed(uint32_t node) const { return placed_[node]; }

 private:
  template <class Visit>
  void for_each_node(Visit visit) {
    for (uint32_t index = 0; index < stages_.size(); ++index) {
      if (placed_[index]) visit(index);
    }
  }

  [[nodiscard]] int latest_operand(uint32_t index) const {
    int latest = kNoStage;
    for (ir::ValueId operand : graph_.operands({index})) {
      const ir::NodeId producer = graph_[operand].producer;
      if (producer.valid()) latest = std::max(latest, stages_[producer.index]);
    }
    return latest;
  }

  const ir::Graph& graph_;
  std::vector<bool> placed_;
  std::vector<int> stages_;
  std::vector<std::vector<ir::NodeId>> users_;
  std::vector<std::vector<ir::NodeId>> sets_;
};

/// The segments of a stage, whose nodes are in order, as they were by name. Nodes that were not
/// there join the one around them, and those that must share a segment do.
std::vector<std::vector<std::string>> map_segments(
    const std::vector<std::vector<std::string>>& segments, const std::vector<std::string>& nodes,
    const std::vector<std::vector<size_t>>& sets) {
  if (segments.empty()) return {};
  std::unordered_map<std::string_view, int> segment_of;
  for (size_t segment = 0; segment < segments.size(); ++segment) {
    for (const std::string& node : segments[segment]) {
      segment_of.emplace(node, static_cast<int>(segment));
    }
  }
  constexpr int kNoSegment = -1;
  std::vector<int> found;
  size_t behind = 0;  // the last node of a segment
  for (size_t place = 0; place < nodes.size(); ++place) {
    const auto known = segment_of.find(nodes[place]);
    found.push_back(known == segment_of.end() ? kNoSegment : known->second);
    if (found.back() == kNoSegment) continue;
    if (behind > 0 && found[behind - 1] == found.back()) {
      std::fill(found.begin() + static_cast<ptrdiff_t>(behind), found.end(), found.back());
    }
    behind = place + 1;
  }
  for (bool changed = true; changed;) {  // ends, as numbers only rise
    changed = false;
    for (const std::vector<size_t>& set : sets) {
      const auto begin = found.begin() + static_cast<ptrdiff_t>(set.front());
      const auto end = found.begin() + static_cast<ptrdiff_t>(set.back() + 1);
      const int most = *std::max_element(begin, end);
      if (most == *std::min_element(begin, end)) continue;
      std::fill(begin, end, most);
      changed = true;
    }
  }
  std::vector<std::vector<std::string>> result;
  for (size_t place = 0; place < nodes.size(); ++place) {
    if (found[place] == kNoSegment) continue;
    if (place == 0 || found[place - 1] != found[place]) result.emplace_back();
    result.back().push_back(nodes[place]);
  }
  return result;
}

}  // namespace

Plan map_to(const Plan& plan, const ir::Graph& from, const ir::Graph& to) {
  const Placement placement = place(plan, from);
  Mapper mapper(to);
  mapper.place_by_name(from, placement);
  mapper.place_by_state(homes_of_state(from, placement));
  mapper.place_by_neighbours();
  mapper.settle();

  Plan mapped = plan;
  mapped.iteration_ns = 0;
  int world = 0;
  for (Stage& stage : mapped.stages) {
    stage.nodes.clear();
    stage.predicted.reset();  // made for the other graph
    world = std::max(world, 1 + *std::ranges::max_element(stage.ranks));
  }
  for (uint32_t index = 0; index < to.nodes.size(); ++index) {
    if (!mapper.is_placed(index)) continue;
    mapped.stages[mapper.stage_of(index)].nodes.push_back(to.nodes[index].name);
  }
  for (size_t stage = 0; stage < mapped.stages.size(); ++stage) {
    std::vector<std::string>& nodes = mapped.stages[stage].nodes;
    mapped.stages[stage].segments =
        map_segments(mapped.stages[stage].segments, nodes, mapper.sets_in(static_cast<int>(stage)));
  }
  verify(mapped, to, world);
  return mapped;
}

}  // namespace rannc::plan
