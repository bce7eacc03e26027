#include "rannc/plan/buckets.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace rannc::plan {

int64_t shard_bytes(const Bucket& bucket, ir::DType dtype, size_t ranks) {
  const int64_t number_bytes = ir::size_bytes(dtype);
  return shard_size(bucket.bytes / number_bytes, ranks) * number_bytes;
}

std::vector<Bucket> buckets(const std::vector<Gradient>& gradients, int64_t bucket_bytes) {
  int64_t total = 0;
  for (const Gradient& gradient : gradients) total += gradient.bytes;
  const int64_t limit = std::max(bucket_bytes, total / kBucketShare);

  std::vector<Bucket> buckets;
  std::map<ir::DType, size_t> open;  // the one that may have room
  for (size_t index = 0; index < gradients.size(); ++index) {
    const auto& [dtype, bytes] = gradients[index];
    const auto found = open.find(dtype);
    if (found == open.end() || buckets[found->second].bytes + bytes > limit) {
      open[dtype] = buckets.size();
      buckets.emplace_back();
    }
    Bucket& bucket = buckets[open[dtype]];
    bucket.parameters.push_back(index);
    bucket.bytes += bytes;
  }
  return buckets;
}

std::vector<uint32_t> first_users(const ir::Graph& graph) {
  std::vector<uint32_t> first(graph.values.size(), 0);
  for (auto node = static_cast<uint32_t>(graph.nodes.size()); node-- > 0;) {
    for (ir::ValueId operand : graph.operands(ir::NodeId{node})) first[operand.index] = node;
  }
  return first;
}

std::vector<Bucket> buckets(const Reduction& reduction, const ir::Graph& graph,
                            int64_t bucket_bytes) {
  return buckets(reduction, graph, first_users(graph), bucket_bytes);
}

std::vector<Bucket> buckets(const Reduction& reduction, const ir::Graph& graph,
                            const std::vector<uint32_t>& first_users, int64_t bucket_bytes) {
  std::vector<size_t> order(reduction.parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](size_t p) { return first_users[reduction.parameters[p].index]; });

  std::vector<Gradient> gradients;
  for (size_t parameter : order) {
    const ir::Value& value = graph[reduction.parameters[parameter]];
    gradients.push_back({value.dtype, value.bytes(1)});
  }
  std::vector<Bucket> result = buckets(gradients, bucket_bytes);
  for (Bucket& bucket : result) {
    for (size_t& parameter : bucket.parameters) parameter = order[parameter];
  }
  return result;
}

}  // namespace rannc::plan
