#include "partition/order.h"

#include <algorithm>
#include <utility>

namespace rannc::partition {

std::vector<double> cut_bytes(const cost::GraphProfile& pieces, const std::vector<uint32_t>& order,
                              double rows) {
  const size_t count = pieces.nodes.size();
  std::vector<uint32_t> position(count);
  for (uint32_t k = 0; k < count; ++k) position[order[k]] = k;

  std::vector<std::vector<uint32_t>> last_use(count);  // per output, position of the last user
  for (size_t node = 0; node < count; ++node) {
    last_use[node].assign(pieces.nodes[node].outputs.size(), position[node]);
  }
  for (size_t node = 0; node < count; ++node) {
    for (const cost::ProfileUse& use : pieces.nodes[node].inputs) {
      if (use.is_input) continue;
      uint32_t& last = last_use[use.node][use.output];
      last = std::max(last, position[node]);
    }
  }
  // A value is born after its producer and dies after its last user. The count of the living is
  // kept too, because rounding would leave a border that nothing crosses a little off 0.
  std::vector<double> born(count + 1, 0.0), dies(count + 1, 0.0);
  std::vector<int64_t> births(count + 1, 0);
  for (size_t node = 0; node < count; ++node) {
    for (size_t output = 0; output < last_use[node].size(); ++output) {
      const uint32_t from = position[node], to = last_use[node][output];
      if (to == from) continue;
      const double bytes = pieces.nodes[node].outputs[output].size.at(rows);
      born[from + 1] += bytes;
      dies[to + 1] += bytes;
      ++births[from + 1];
      --births[to + 1];
    }
  }
  std::vector<double> cut(count, 0.0);
  double living = 0;
  int64_t values = 0;
  for (size_t k = 0; k < count; ++k) {
    living += born[k] - dies[k];
    values += births[k];
    if (values == 0) living = 0;
    cut[k] = living;
  }
  return cut;
}

std::vector<uint32_t> depth_first_order(const cost::GraphProfile& pieces) {
  const size_t count = pieces.nodes.size();
  std::vector<bool> is_read(count, false), seen(count, false);
  for (const cost::ProfileNode& node : pieces.nodes) {
    for (const cost::ProfileUse& use : node.inputs) {
      if (!use.is_input) is_read[use.node] = true;
    }
  }
  std::vector<uint32_t> order;
  order.reserve(count);
  std::vector<std::pair<uint32_t, size_t>> calls;  // node, next input to follow
  for (uint32_t root = 0; root < count; ++root) {
    if (is_read[root]) continue;
    seen[root] = true;
    calls.emplace_back(root, 0);
    while (!calls.empty()) {
      const uint32_t node = calls.back().first;
      const std::vector<cost::ProfileUse>& inputs = pieces.nodes[node].inputs;
      if (calls.back().second == inputs.size()) {
        order.push_back(node);
        calls.pop_back();
        continue;
      }
      const cost::ProfileUse& use = inputs[calls.back().second++];
      if (use.is_input || seen[use.node]) continue;
      seen[use.node] = true;
      calls.emplace_back(use.node, 0);
    }
  }
  return order;
}

}  // namespace rannc::partition
