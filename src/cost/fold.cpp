#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "rannc/cost/device_bytes.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/rows.h"
#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
/// Its backward (src/ops/linear.cpp) takes no longer than to write a gradient, and no memory for
/// one.
constexpr std::string_view kAddsInPlace = "aten::linear";

/// Bytes as a line in the rows: exact when one dimension depends on them, else through the values
/// at 1 and 2 rows; never below 0, as the file demands.
Size size_of(const ir::Value& value) {
  const auto one = static_cast<double>(device_bytes(value, 1));
  const auto two = static_cast<double>(device_bytes(value, 2));
  const double slope = std::max(0.0, two - one);
  return {.bytes_per_row = slope, .fixed_bytes = std::max(0.0, one - slope)};
}

bool is_state(ir::ValueKind kind) {
  // Constants take memory on every stage that uses them, as buffers do.
  return kind == ir::ValueKind::parameter || kind == ir::ValueKind::buffer ||
         kind == ir::ValueKind::constant;
}

class Folder {
 public:
  Folder(const ir::Graph& graph, const CostTable& table, const std::vector<double>& optimizer_bytes,
         const std::vector<SavedStorage>& saved, const NodePairs& joined)
      : graph_(graph),
        table_(table),
        saved_(saved),
        joined_(joined),
        on_rows_(ir::depends_on_rows(graph)),
        place_(graph.values.size(), kNone),
        output_(graph.values.size(), 0),
        stamp_(graph.nodes.size(), kNone),
        profile_index_(graph.nodes.size(), kNone),
        effects_(graph.nodes.size()) {
    has_host_times_ = std::ranges::any_of(table.node, [](const std::vector<NodeCost>& costs) {
      return std::ranges::any_of(costs, [](const NodeCost& cost) {
        return cost.forward_host_ns != 0 || cost.backward_host_ns != 0;
      });
    });
    if (!saved.empty() || has_host_times_) profile_.version = 2;
    profile_.name = graph.name;
    profile_.rows = table.rows;
    add_params(optimizer_bytes);
    add_inputs();
  }

  GraphProfile fold() {
    for (const ir::EffectOwner& effect : ir::effect_owners(graph_)) {
      effects_[effect.owner.index].push_back(effect.effect);
    }
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      if (on_rows_[index]) add_node({index});
    }
    for (const SavedStorage& storage : saved_) add_storage(storage);
    name_groups();
    return std::move(profile_);
  }

 private:
  /// A group has the name of its first node.
  void name_groups() {
    std::vector<uint32_t> first(profile_.nodes.size());
    std::iota(first.begin(), first.end(), 0);
    const auto find = [&](ir::NodeId node) {
      uint32_t found = profile_index_.at(node.index);
      while (first[found] != found) found = first[found] = first[first[found]];
      return found;
    };
    const auto join = [&](ir::NodeId one, ir::NodeId other) {
      const auto [low, high] = std::minmax({find(one), find(other)});
      first[high] = low;
    };
    for (const std::vector<ir::NodeId>& set : ir::inseparable_nodes(graph_)) {
      for (const ir::NodeId node : set) join(set.front(), node);
    }
    for (const auto& [one, other] : joined_) {
      if (on_rows_[one.index] && on_rows_[other.index]) join(one, other);
    }
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      if (!on_rows_[index]) continue;
      const uint32_t mine = profile_index_[index], group = find({index});
      if (mine == group) continue;
      profile_.nodes[mine].group = profile_.nodes[group].group = profile_.nodes[group].name;
    }
  }

  void add_params(const std::vector<double>& optimizer_bytes) {
    size_t states = 0;  // parameters and buffers so far
    bool named_dtype = false;
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const ir::Value& value = graph_.values[index];
      if (!is_state(value.kind)) continue;
      const bool parameter = value.kind == ir::ValueKind::parameter;
      ProfileParam param{.id = value.name,
                         .bytes = static_cast<double>(device_bytes(value, 1)),
                         .trainable = parameter && value.requires_grad};
      if (value.kind != ir::ValueKind::constant) {
        if (!optimizer_bytes.empty()) {
          RANNC_CHECK(
              states < optimizer_bytes.size(),
              fmt::format("optimizer bytes of {} parameters and buffers, but '{}' is one more",
                          optimizer_bytes.size(), value.name));
          if (parameter) param.optimizer_bytes = optimizer_bytes[states];
        }
        ++states;
      }
      if (parameter && !named_dtype && ir::is_floating(value.dtype)) {
        profile_.dtype = ir::name(value.dtype);
        named_dtype = true;
      }
      place_[index] = static_cast<uint32_t>(profile_.params.size());
      profile_.params.push_back(std::move(param));
    }
    RANNC_CHECK(optimizer_bytes.empty() || optimizer_bytes.size() == states,
                fmt::format("optimizer bytes of {} parameters and buffers, but the graph has {}",
                            optimizer_bytes.size(), states));
  }

  void add_inputs() {
    // Uses name nodes and inputs alike in the file, so an input must not be called like a node.
    std::unordered_set<std::string> names;
    for (const ir::Node& node : graph_.nodes) names.insert(node.name);
    for (ir::ValueId id : graph_.inputs) {
      std::string name = graph_[id].name;
      std::ranges::replace(name, ':', '_');
      while (!names.insert(name).second) name += "_input";
      place_[id.index] = static_cast<uint32_t>(profile_.inputs.size());
      profile_.inputs.push_back({std::move(name), size_of(graph_[id])});
    }
  }

  void add_node(ir::NodeId id) {
    const ir::Node& node = graph_[id];
    const auto index = static_cast<uint32_t>(profile_.nodes.size());
    ProfileNode folded;
    folded.name = node.name;
    folded.op = node.op;
    if (profile_.version > 1) {
      folded.module = node.module;
      if (!node.source.file.empty()) folded.source = ir::place(node.source);
    }
    folded.adds_in_place = node.op == kAddsInPlace;
    const size_t points = table_.rows.size();
    folded.forward_ns.assign(points, 0);
    folded.backward_ns.assign(points, 0);
    folded.saved_bytes.assign(points, 0);
    folded.workspace_bytes.assign(points, 0);
    if (has_host_times_) {
      folded.forward_host_ns.assign(points, 0);
      folded.backward_host_ns.assign(points, 0);
    }
    charge(folded, id, saved_.empty());
    // Row-independent nodes run again wherever they are used, so each user pays for its own; those
    // that only write a buffer (step counters) run where their owner does.
    std::vector<ir::NodeId> pending = effects_[id.index];
    read_operands(folded, id, id, pending);
    while (!pending.empty()) {
      const ir::NodeId clone = pending.back();
      pending.pop_back();
      charge(folded, clone, true);
      read_operands(folded, clone, id, pending);
    }
    for (ir::ValueId output : node.outputs) {
      if (!output.valid()) {
        folded.outputs.push_back({.size = {}, .grad = false});
        continue;
      }
      const ir::Value& value = graph_[output];
      place_[output.index] = index;
      output_[output.index] = static_cast<uint32_t>(folded.outputs.size());
      folded.outputs.push_back(
          {.size = size_of(value), .grad = value.requires_grad && ir::is_floating(value.dtype)});
    }
    profile_index_[id.index] = index;
    profile_.nodes.push_back(std::move(folded));
  }

  /// Adds what `reader` reads to `folded`; row-independent producers that `user` has not paid for
  /// yet go to `pending`.
  void read_operands(ProfileNode& folded, ir::NodeId reader, ir::NodeId user,
                     std::vector<ir::NodeId>& pending) {
    for (ir::ValueId operand : graph_.operands(reader)) {
      const ir::Value& value = graph_[operand];
      if (is_state(value.kind)) {
        add_once(folded.params, place_[operand.index]);
      } else if (value.kind == ir::ValueKind::input) {
        add_once(folded.inputs, {true, place_[operand.index], 0});
      } else if (on_rows_[value.producer.index]) {
        add_once(folded.inputs, {false, place_[operand.index], output_[operand.index]});
      } else if (stamp_[value.producer.index] != user.index) {
        stamp_[value.producer.index] = user.index;
        pending.push_back(value.producer);
      }
    }
  }

  template <class Element>
  static void add_once(std::vector<Element>& list, const Element& element) {
    if (std::ranges::find(list, element) == list.end()) list.push_back(element);
  }

  /// What only row-independent nodes save is small, or charged with them.
  void add_storage(const SavedStorage& storage) {
    SavedStorage folded{.nodes = {}, .bytes = storage.bytes};
    for (const uint32_t node : storage.nodes) {
      if (on_rows_.at(node)) folded.nodes.push_back(profile_index_[node]);
    }
    if (folded.nodes.size() > 1) {
      profile_.saved.push_back(std::move(folded));
    } else if (!folded.nodes.empty()) {
      std::vector<double>& own = profile_.nodes[folded.nodes.front()].saved_bytes;
      for (size_t i = 0; i < own.size(); ++i) own[i] += storage.bytes.at(i);
    }
  }

  void charge(ProfileNode& folded, ir::NodeId id, bool with_saved) const {
    const std::vector<NodeCost>& costs = table_.node[id.index];
    for (size_t i = 0; i < costs.size(); ++i) {
      folded.forward_ns[i] += static_cast<double>(costs[i].forward_ns);
      folded.backward_ns[i] += static_cast<double>(costs[i].backward_ns);
      if (with_saved) folded.saved_bytes[i] += static_cast<double>(costs[i].saved_bytes);
      folded.workspace_bytes[i] =
          std::max(folded.workspace_bytes[i], static_cast<double>(costs[i].workspace_bytes));
      if (!has_host_times_) continue;
      folded.forward_host_ns[i] += static_cast<double>(costs[i].forward_host_ns);
      folded.backward_host_ns[i] += static_cast<double>(costs[i].backward_host_ns);
    }
  }

  const ir::Graph& graph_;
  const CostTable& table_;
  const std::vector<SavedStorage>& saved_;
  const NodePairs& joined_;
  const std::vector<bool> on_rows_;
  bool has_host_times_ = false;
  GraphProfile profile_;
  std::vector<uint32_t> place_;   // [value] index into params, inputs, or nodes of the profile
  std::vector<uint32_t> output_;  // [value] which output of its node
  std::vector<uint32_t> stamp_;   // [node] the last user that paid for this row-independent node
  std::vector<uint32_t> profile_index_;           // [node]
  std::vector<std::vector<ir::NodeId>> effects_;  // [node] row-independent effects that it owns
};

}  // namespace

GraphProfile fold(const ir::Graph& graph, const CostTable& table,
                  const std::vector<double>& optimizer_bytes,
                  const std::vector<SavedStorage>& saved, const NodePairs& joined) {
  verify(table, graph);
  return Folder(graph, table, optimizer_bytes, saved, joined).fold();
}

}  // namespace rannc::cost
