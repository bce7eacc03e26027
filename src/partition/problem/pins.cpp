#include "partition/problem/pins.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::partition {
namespace {

/// Whether `node` is of the module itself, or of one inside it.
bool belongs(std::string_view node, std::string_view module) {
  return node.starts_with(module) && (node.size() == module.size() || node[module.size()] == '.');
}

std::vector<uint32_t> members(const cost::GraphProfile& profile, const std::string& module) {
  std::vector<uint32_t> result;
  for (uint32_t node = 0; node < profile.nodes.size(); ++node) {
    if (belongs(profile.nodes[node].name, module)) result.push_back(node);
  }
  if (!result.empty()) return result;
  std::vector<std::string> known;
  for (const cost::ProfileNode& node : profile.nodes) {
    for (size_t end = node.name.find('.'); end != std::string::npos;
         end = node.name.find('.', end + 1)) {
      known.push_back(node.name.substr(0, end));
    }
    known.push_back(node.name);
  }
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw ConfigError(fmt::format("the graph has no module '{}'.\n  Did you mean '{}'?", module,
                                closest(module, known)));
}

/// Sets of nodes that grow together.
class Sets {
 public:
  explicit Sets(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }
  uint32_t find(uint32_t node) {
    while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
    return node;
  }
  void join(uint32_t a, uint32_t b) { parent_[find(b)] = find(a); }

 private:
  std::vector<uint32_t> parent_;
};

}  // namespace

std::optional<cost::GraphProfile> keep_whole(const cost::GraphProfile& profile,
                                             const std::vector<std::string>& modules) {
  if (modules.empty()) return std::nullopt;
  Sets sets(profile.nodes.size());
  std::unordered_map<std::string_view, uint32_t> first;
  for (uint32_t node = 0; node < profile.nodes.size(); ++node) {
    const std::string& group = profile.nodes[node].group;
    if (!group.empty()) sets.join(first.emplace(group, node).first->second, node);
  }
  std::vector<bool> grouped(profile.nodes.size(), false);
  for (const std::string& module : modules) {
    const std::vector<uint32_t> nodes = members(profile, module);
    for (const uint32_t node : nodes) {
      sets.join(nodes.front(), node);
      grouped[node] = true;
    }
  }
  cost::GraphProfile result = profile;
  for (uint32_t node = 0; node < result.nodes.size(); ++node) {
    if (!grouped[node] && result.nodes[node].group.empty()) continue;
    result.nodes[node].group = "set of " + profile.nodes[sets.find(node)].name;
  }
  return result;
}

std::vector<int> pins_of_nodes(const cost::GraphProfile& profile, const std::vector<Pin>& pins) {
  std::vector<int> result;
  if (pins.empty()) return result;
  result.assign(profile.nodes.size(), SearchSpace::kFree);
  for (const Pin& pin : pins) {
    if (pin.stage < SearchSpace::kLastStage) {
      throw ConfigError(
          fmt::format("module '{}' is pinned to stage {}.\n  Stages count from 0; -1 "
                      "is the last.",
                      pin.module, pin.stage));
    }
    for (const uint32_t node : members(profile, pin.module)) {
      if (result[node] != SearchSpace::kFree && result[node] != pin.stage) {
        throw ConfigError(fmt::format("node '{}' is pinned to stage {} and to stage {}.",
                                      profile.nodes[node].name, result[node], pin.stage));
      }
      result[node] = pin.stage;
    }
  }
  return result;
}

int number_last_stage(std::vector<int>& pin_of_node,
                      const std::vector<std::vector<uint32_t>>& pieces) {
  int number = SearchSpace::kFree;
  for (size_t piece = 0; !pin_of_node.empty() && piece < pieces.size(); ++piece) {
    int highest = SearchSpace::kFree;
    bool last = false;
    for (const uint32_t node : pieces[piece]) {
      highest = std::max(highest, pin_of_node[node]);
      last = last || pin_of_node[node] == SearchSpace::kLastStage;
    }
    if (last && highest >= 0) number = highest;
  }
  if (number < 0) return 0;
  std::ranges::replace(pin_of_node, SearchSpace::kLastStage, number);
  return number + 1;
}

std::vector<int> pins_of_blocks(const cost::GraphProfile& profile,
                                const std::vector<int>& pin_of_node,
                                const std::vector<std::vector<uint32_t>>& blocks) {
  std::vector<int> result;
  if (pin_of_node.empty()) return result;
  for (const std::vector<uint32_t>& block : blocks) {
    int pin = SearchSpace::kFree;
    uint32_t pinned = 0;
    for (const uint32_t node : block) {
      const int here = pin_of_node[node];
      if (here == SearchSpace::kFree) continue;
      if (pin != SearchSpace::kFree && pin != here) {
        throw ConfigError(fmt::format(
            "'{}' is pinned to stage {} and '{}' to stage {}, but they cannot be separated.",
            profile.nodes[pinned].name, pin, profile.nodes[node].name, here));
      }
      pin = here;
      pinned = node;
    }
    result.push_back(pin);
  }
  return result;
}

}  // namespace rannc::partition
