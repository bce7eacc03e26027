#include "rannc/ir/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "rannc/ir/draws.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/shard.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

constexpr int kOutside = -1;

bool is_state(const Value& value) {
  return value.kind == ValueKind::parameter || value.kind == ValueKind::buffer;
}

/// Parameters and buffers that a node touches.
std::set<uint32_t> state_of(const Graph& graph, NodeId node) {
  std::set<uint32_t> state;
  const auto see = [&](ValueId value) {
    const ValueId storage = graph[value].storage;
    if (is_state(graph[storage])) state.insert(storage.index);
    if (is_state(graph[value])) state.insert(value.index);
  };
  for (ValueId operand : graph.operands(node)) see(operand);
  for (ValueId written : graph[node].writes) see(written);
  return state;
}

/// Deals the nodes of a graph out to segments, and puts them in an order.
class Arranger {
 public:
  Arranger(const Graph& graph, const std::vector<std::vector<NodeId>>& segments)
      : graph_(graph),
        users_(graph.users()),
        segment_(graph.nodes.size(), kOutside),
        range_(graph.nodes.size(), kOutside),
        is_free_(graph.nodes.size()),
        written_(graph.values.size()),
        returned_(graph.values.size()) {
    for (const Node& node : graph.nodes) {
      for (ValueId value : node.writes) written_[graph[value].storage.index] = true;
    }
    for (ValueId output : graph.outputs) returned_[output.index] = true;
    const std::vector<bool> dependent = depends_on_rows(graph);
    for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
      is_free_[index] = !dependent[index] && !is_collective(graph.nodes[index]);
    }
    for (size_t segment = 0; segment < segments.size(); ++segment) {
      RANNC_CHECK(!segments[segment].empty(), "an empty segment");
      const auto number = static_cast<int>(segment);
      for (NodeId node : segments[segment]) {
        is_free_[node.index] = false;
        segment_[node.index] = number;
      }
      firsts_.push_back(segments[segment].front().index);
      ends_.push_back(segments[segment].back().index + 1);
      for (uint32_t index = firsts_.back(); index < ends_.back(); ++index) {
        range_[index] = number;
        if (!is_free_[index]) segment_[index] = number;
      }
    }
  }

  SegmentedGraph arrange() {
    deal_out({});
    deal_out(shared_state());  // whose casts then belong to nobody
    return in_order();
  }

 private:
  void deal_out(const std::set<uint32_t>& shared) {
    for (auto index = static_cast<uint32_t>(graph_.nodes.size()); index-- > 0;) {
      if (is_free_[index]) segment_[index] = segment_of({index}, shared);
    }
    // What needs results of a segment cannot run before it.
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      if (!is_free_[index] || segment_[index] != kOutside || range_[index] == kOutside) continue;
      for (ValueId operand : graph_.operands({index})) {
        const NodeId producer = graph_[operand].producer;
        if (producer.valid() && segment_[producer.index] == range_[index]) {
          segment_[index] = range_[index];
        }
      }
    }
  }

  [[nodiscard]] int segment_of(NodeId id, const std::set<uint32_t>& shared) const {
    const Node& node = graph_[id];
    if (draws(node)) return range_[id.index];
    bool outside = false;
    const auto touch = [&](ValueId value) {
      if (!value.valid()) return false;
      const Value& storage = graph_[graph_[value].storage];
      outside = outside || shared.contains(value.index);
      if (!written_[graph_[value].storage.index]) return false;
      outside = outside || storage.kind == ValueKind::result;
      return is_state(storage);
    };
    bool stays = false;
    for (ValueId operand : graph_.operands(id)) stays = touch(operand) || stays;
    for (ValueId output : node.outputs) stays = touch(output) || stays;
    for (ValueId written : node.writes) stays = touch(written) || stays;
    if (stays) return range_[id.index];
    if (outside) return kOutside;
    std::set<int> segments;
    for (ValueId output : node.outputs) {
      if (!output.valid()) continue;
      if (returned_[output.index]) return kOutside;
      for (NodeId user : users_[output.index]) segments.insert(segment_[user.index]);
    }
    if (segments.empty()) return range_[id.index];
    return segments.size() == 1 ? *segments.begin() : kOutside;
  }

  /// Parameters and buffers that a segment touches and others, too.
  [[nodiscard]] std::set<uint32_t> shared_state() const {
    std::vector<std::set<int>> touched(graph_.values.size());
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      for (uint32_t state : state_of(graph_, {index})) touched[state].insert(segment_[index]);
    }
    for (ValueId output : graph_.outputs) touched[output.index].insert(kOutside);
    std::set<uint32_t> shared;
    for (uint32_t index = 0; index < touched.size(); ++index) {
      if (touched[index].size() > 1 && is_state(graph_.values[index])) shared.insert(index);
    }
    return shared;
  }

  [[nodiscard]] SegmentedGraph in_order() const {
    SegmentedGraph result{graph_, std::vector<Segment>(firsts_.size())};
    result.graph.nodes.clear();
    std::vector<bool> added(graph_.nodes.size());
    const auto add = [&](uint32_t index) {
      if (added[index]) return;
      added[index] = true;
      result.graph.add_node(graph_.nodes[index]);
    };
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      const int segment = segment_[index];
      if (segment == kOutside) {
        add(index);
        continue;
      }
      if (index != firsts_[static_cast<size_t>(segment)]) continue;
      for (uint32_t other = index; other < ends_[static_cast<size_t>(segment)]; ++other) {
        if (segment_[other] == kOutside) add(other);
      }
      Segment& found = result.segments[static_cast<size_t>(segment)];
      found.begin = static_cast<uint32_t>(result.graph.nodes.size());
      for (uint32_t other = 0; other < graph_.nodes.size(); ++other) {
        if (segment_[other] == segment) add(other);
      }
      found.end = static_cast<uint32_t>(result.graph.nodes.size());
    }
    verify(result.graph);
    const std::set<uint32_t> shared = shared_state();
    for (Segment& segment : result.segments) describe(result.graph, shared, segment);
    return result;
  }

  /// What a segment takes and gives.
  void describe(const Graph& graph, const std::set<uint32_t>& shared, Segment& segment) const {
    std::set<uint32_t> inputs, outputs, state, written;
    const auto is_own = [&](ValueId value) {
      const NodeId producer = graph[value].producer;
      return producer.valid() && producer.index >= segment.begin && producer.index < segment.end;
    };
    for (uint32_t index = segment.begin; index < segment.end; ++index) {
      const Node& node = graph.nodes[index];
      segment.draws = segment.draws || draws(node);
      state.merge(state_of(graph, {index}));
      for (ValueId value : node.writes) written.insert(graph[value].storage.index);
      for (ValueId operand : graph.operands({index})) {
        const Value& value = graph[operand];
        const bool is_fixed = value.kind == ValueKind::constant && !written_[value.storage.index];
        if (!is_own(operand) && !is_state(value) && !is_fixed) inputs.insert(operand.index);
      }
    }
    for (uint32_t index = segment.begin; index < segment.end; ++index) {
      for (ValueId output : graph.nodes[index].outputs) {
        if (!output.valid()) continue;
        const int mine = segment_[graph_[output].producer.index];  // nodes as they were given
        const bool read = std::ranges::any_of(
            users_[output.index], [&](NodeId user) { return segment_[user.index] != mine; });
        if (read || returned_[output.index]) outputs.insert(output.index);
      }
    }
    for (uint32_t index : inputs) {
      const ValueId storage = graph.values[index].storage;
      const bool is_written = written.contains(storage.index);
      if (is_written && graph[storage].kind == ValueKind::result) {
        throw PlanError(
            fmt::format("recompute: a segment writes to '{}', which nodes outside of it have made",
                        graph.values[index].name));
      }
      segment.inputs.push_back({{index}, is_written});
    }
    for (uint32_t index : outputs) segment.outputs.push_back({index});
    for (uint32_t index : state) {
      const ValueId storage = graph.values[index].storage;
      segment.state.push_back({{index}, shared.contains(index), written_[storage.index]});
    }
  }

  const Graph& graph_;
  const std::vector<std::vector<NodeId>> users_;
  std::vector<int> segment_;    // [node]
  std::vector<int> range_;      // [node]: the segment between whose nodes it is
  std::vector<bool> is_free_;   // [node]: it may run elsewhere
  std::vector<bool> written_;   // by storage
  std::vector<bool> returned_;  // [value]
  std::vector<uint32_t> firsts_, ends_;
};

}  // namespace

SegmentedGraph segmented(Graph graph, const std::vector<std::vector<NodeId>>& segments) {
  if (segments.empty()) return {std::move(graph), {}};
  return Arranger(graph, segments).arrange();
}

SegmentedGraph as_one_segment(Graph graph) {
  std::vector<NodeId> nodes;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) nodes.push_back({index});
  if (nodes.empty()) return {std::move(graph), {}};
  return segmented(std::move(graph), {nodes});
}

}  // namespace rannc::ir
