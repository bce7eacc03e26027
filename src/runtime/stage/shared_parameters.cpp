#include "runtime/stage/shared_parameters.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <ranges>
#include <utility>

#include "rannc/plan/ranks/shared_parameters.h"
#include "rannc/util/error.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {
namespace {

/// A bucket has at most one part in so many of what a stage shares, so that two of them are little.
/// tuned by: a bound on memory: two whole buckets are a quarter of a small model.
/// without it: a stage with less than a bucket of the plan's size would be whole as it computes.
constexpr int64_t kBucketsOfStage = 8;

/// Whether a node makes nothing but views of a tensor, without looking at its numbers.
bool only_views(const ir::Graph& graph, const ir::Node& node, ir::ValueId storage) {
  if (!node.writes.empty() || node.kind != ir::OpKind::dispatcher) return false;
  if (node.op.starts_with("aten::as_strided")) return false;  // it looks at the memory's size
  return std::ranges::all_of(node.outputs, [&](ir::ValueId output) {
    return output.valid() && graph[output].storage == storage;
  });
}

/// Whether the backward of a node may read the parameters that it was given.
bool reads_back(const ir::Graph& graph, const ir::Node& node) {
  if (!node.grad_enabled || ir::known_op(node) == "aten::embedding") return false;
  return std::ranges::any_of(node.outputs, [&](ir::ValueId output) {
    return output.valid() && graph[output].requires_grad;
  });
}

void add_step(std::vector<SharedParameters::Buckets>& steps,
              const SharedParameters::Buckets& needed) {
  if (needed.empty()) return;
  if (!steps.empty() && std::ranges::includes(steps.back(), needed)) return;
  if (!steps.empty() && std::ranges::includes(needed, steps.back())) {
    steps.back() = needed;
  } else {
    steps.push_back(needed);
  }
}

}  // namespace

SharedParameters::SharedParameters(const ir::Graph& graph, const std::vector<ir::Segment>& segments,
                                   const std::vector<std::string>& state_names,
                                   const Sharing& sharing) {
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    const ir::Value& value = graph.values[index];
    if (value.kind != ir::ValueKind::parameter) continue;
    if (std::ranges::find(sharing.names, value.name) == sharing.names.end()) continue;
    const auto found = std::ranges::find(state_names, value.name);
    RANNC_CHECK(found != state_names.end() && value.storage == ir::ValueId{index}, value.name);
    const int64_t rows = sizes_at(value, 0).front();
    parameters.push_back({.value = {index},
                          .state = static_cast<size_t>(found - state_names.begin()),
                          .requires_grad = value.requires_grad,
                          .rows = rows,
                          .share = plan::rows_of_replica(rows, sharing.ranks.size())});
  }
  if (parameters.empty()) return;
  fill_buckets(graph, sharing.bucket_bytes);
  find_needed(graph);
  find_steps(segments);
}

/// In the order of their first use.
void SharedParameters::fill_buckets(const ir::Graph& graph, int64_t bucket_bytes) {
  std::vector<uint32_t> first(graph.values.size(), std::numeric_limits<uint32_t>::max());
  for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
    for (ir::ValueId operand : graph.operands({node})) {
      first[operand.index] = std::min(first[operand.index], node);
    }
  }
  const auto first_of = [&](const Parameter& one) {
    return std::pair(first[one.value.index], one.value.index);
  };
  std::ranges::sort(parameters, {}, first_of);
  int64_t total = 0;
  for (const Parameter& one : parameters) total += graph[one.value].bytes(0);
  const int64_t most = std::min(bucket_bytes, total / kBucketsOfStage);
  int64_t bytes = 0;
  for (size_t index = 0; index < parameters.size(); ++index) {
    const int64_t size = graph[parameters[index].value].bytes(0);
    if (buckets.empty() || bytes + size > most) {
      buckets.emplace_back();
      bytes = 0;
    }
    bytes += size;
    buckets.back().push_back(index);
    parameters[index].bucket = buckets.size() - 1;
  }
  for (size_t index = parameters.size(); index-- > 0;) {
    if (parameters[index].requires_grad) scattered.push_back(index);
  }
}

void SharedParameters::find_needed(const ir::Graph& graph) {
  std::vector<std::optional<size_t>> bucket_of(graph.values.size());  // [storage]
  for (const Parameter& one : parameters) bucket_of[one.value.index] = one.bucket;
  std::vector<bool> reached(graph.values.size());
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const ir::Node& node = graph.nodes[index];
    Buckets& of_node = needed.emplace_back();
    bool is_reached = false;
    for (ir::ValueId operand : graph.operands({index})) {
      const ir::ValueId storage = graph[operand].storage;
      is_reached = is_reached || reached[operand.index] || bucket_of[storage.index];
      if (bucket_of[storage.index] && !only_views(graph, node, storage)) {
        of_node.push_back(*bucket_of[storage.index]);
      }
    }
    std::ranges::sort(of_node);
    const auto repeats = std::ranges::unique(of_node);
    of_node.erase(repeats.begin(), repeats.end());
    needed_back.push_back(!of_node.empty() && reads_back(graph, node));
    reached_by_one.push_back(is_reached);
    for (ir::ValueId output : node.outputs) {
      if (output.valid() && is_reached) reached[output.index] = true;
    }
  }
}

void SharedParameters::find_steps(const std::vector<ir::Segment>& segments) {
  for (const Buckets& of_node : needed) add_step(forward, of_node);
  const auto back = [&](size_t begin, size_t end) {
    for (size_t node = end; node-- > begin;) {
      if (needed_back[node]) add_step(backward, needed[node]);
    }
  };
  size_t end = needed.size();
  for (const ir::Segment& segment : segments | std::views::reverse) {
    back(segment.end, end);
    for (size_t node = segment.begin; node < segment.end; ++node) add_step(backward, needed[node]);
    back(segment.begin, segment.end);
    end = segment.begin;
  }
  back(0, end);
}

}  // namespace rannc::runtime
