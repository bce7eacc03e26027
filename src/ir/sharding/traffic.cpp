#include <algorithm>
#include <unordered_map>

#include "rannc/ir/shard.h"

namespace rannc::ir {
namespace {

/// Bytes of the longest part of any place.
int64_t longest_part(const Node& node, int64_t whole_bytes) {
  const auto& pieces = std::get<std::vector<AffineInt>>(node.inputs.at(2));
  int64_t longest = 0, all = 0;
  for (size_t at = 0; at < pieces.size();) {
    const int64_t stretches = pieces[at++].fixed;
    int64_t size = 0;
    for (int64_t index = 0; index < stretches; ++index, at += 2) size += pieces[at + 1].fixed;
    longest = std::max(longest, size);
    all += size;
  }
  return whole_bytes / std::max<int64_t>(all, 1) * longest;
}

}  // namespace

bool is_collective(const Node& node) { return node.op.starts_with("group::"); }

Traffic& Traffic::operator+=(const Traffic& other) {
  messages += other.messages;
  bytes += other.bytes;
  return *this;
}

CollectiveTraffic traffic_of(const Graph& sharded, NodeId id, int ways, int64_t rows) {
  const Node& node = sharded[id];
  if (!is_collective(node)) return {};
  const int64_t others = ways - 1;
  const Value& operand = sharded[std::get<ValueId>(node.inputs.front())];
  const Value& result = sharded[node.outputs.front()];
  const bool grad = result.requires_grad;
  const int64_t whole = std::max(operand.bytes(rows), result.bytes(rows));
  const bool half = operand.dtype == DType::float16 || operand.dtype == DType::bfloat16;
  const Traffic sum{2 * others, 2 * others * (half ? 2 * whole : whole) / ways};  // as float32
  if (node.op == "group::sum") return {sum, {}};
  if (node.op == "group::sum_gradient") return {{}, grad ? sum : Traffic{}};
  if (node.op == "group::max") return {{others, others * whole}, {}};
  const int64_t part = longest_part(node, whole);
  const Traffic gather{others, others * part};
  const Traffic scatter{others, others * (half ? 2 * part : part)};  // as float32
  if (node.op == "group::reduce_scatter") return {scatter, grad ? gather : Traffic{}};
  if (node.op == "group::all_gather_sum_gradient") return {gather, grad ? scatter : Traffic{}};
  if (node.op == "group::all_gather") return {gather, {}};
  return {{}, grad ? gather : Traffic{}};
}

Traffic all_traffic(const Graph& sharded, int ways, int64_t rows) {
  Traffic total;
  for (uint32_t index = 0; index < sharded.nodes.size(); ++index) {
    const auto [forward, backward] = traffic_of(sharded, NodeId{index}, ways, rows);
    (total += forward) += backward;
  }
  return total;
}

Layouts layouts(const Graph& graph, int ways, const std::vector<std::string>& factors) {
  Layouts found;
  for (const Value& value : graph.values) {
    const bool state = value.kind == ValueKind::parameter || value.kind == ValueKind::buffer;
    if (state) found[value.name];
  }
  for (int place = 0; place < ways; ++place) {
    for (const Part& part : shard(graph, ways, place, factors).parts) {
      const auto layout = found.find(part.name);
      if (layout == found.end()) continue;  // a constant
      layout->second.dim = part.dim;
      layout->second.stretches.push_back(part.stretches);
    }
  }
  return found;
}

namespace {

/// Values of the place's graph by their names in the model's.
std::unordered_map<std::string_view, const Value*> by_name(const Graph& graph) {
  std::unordered_map<std::string_view, const Value*> found;
  for (const Value& value : graph.values) found.emplace(value.name, &value);
  return found;
}

}  // namespace

Graph with_sizes_of(const Graph& whole, const ShardedGraph& sharded) {
  const auto here = by_name(sharded.graph);
  Graph made = whole;
  for (Value& value : made.values) {
    const auto found = here.find(value.name);
    if (found == here.end()) continue;  // the sum of partial results: whole
    value.dims = found->second->dims;
    value.rows = found->second->rows;
  }
  for (const ValueId output : whole.outputs) {
    made[output].dims = whole[output].dims;
    made[output].rows = whole[output].rows;
  }
  return made;
}

std::vector<std::pair<NodeId, NodeId>> joined_by_parts(const Graph& whole,
                                                       const ShardedGraph& sharded) {
  const auto here = by_name(sharded.graph);
  // A border may lie where the sequence is cut: who sends gathers.
  const auto is_cut = [&](const Value& value) {
    const auto found = here.find(value.name);
    return found != here.end() && found->second->dims != value.dims &&
           !sharded.along_sequence.contains(value.name);
  };
  std::vector<std::pair<NodeId, NodeId>> pairs;
  for (uint32_t index = 0; index < whole.nodes.size(); ++index) {
    for (const ValueId operand : whole.operands(NodeId{index})) {
      const Value& value = whole[operand];
      if (value.kind == ValueKind::result && is_cut(value)) {
        pairs.emplace_back(value.producer, NodeId{index});
      }
    }
  }
  return pairs;
}

}  // namespace rannc::ir
