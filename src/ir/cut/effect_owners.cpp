#include <string_view>
#include <unordered_map>

#include "ir/effects.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

/// "a.b.c" -> "a.b" -> "a" -> "".
std::string_view parent(std::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? "" : module.substr(0, dot);
}

}  // namespace

std::vector<EffectOwner> effect_owners(const Graph& graph) {
  const std::vector<bool> dependent = depends_on_rows(graph);
  // First row-dependent node that a module called itself, and that it or a module below it called.
  std::unordered_map<std::string_view, NodeId> direct;
  std::unordered_map<std::string_view, NodeId> below;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!dependent[index]) continue;
    std::string_view module = graph.nodes[index].module;
    direct.try_emplace(module, NodeId{index});
    while (below.try_emplace(module, NodeId{index}).second && !module.empty()) {
      module = parent(module);
    }
  }

  std::vector<EffectOwner> owners;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const Node& node = graph.nodes[index];
    if (dependent[index] || !writes_state(graph, node) || below.empty()) continue;
    std::string_view module = node.module;
    if (const auto found = direct.find(module); found != direct.end()) {
      owners.push_back({{index}, found->second});
      continue;
    }
    // The root, "", is above every module, so this ends.
    while (!below.contains(module)) module = parent(module);
    owners.push_back({{index}, below.at(module)});
  }
  return owners;
}

}  // namespace rannc::ir
