#include "partition/blocks/linear_order.h"

#include <algorithm>
#include <numeric>
#include <set>
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

std::vector<uint32_t> fewest_bytes_order(const cost::GraphProfile& pieces, double rows) {
  const size_t count = pieces.nodes.size();
  struct Value {
    uint32_t producer, output;
    auto operator<=>(const Value&) const = default;
  };
  std::vector<std::vector<Value>> reads(count);  // each once
  std::vector<std::vector<uint32_t>> next(count);
  std::vector<uint32_t> waits_for(count, 0);
  std::vector<std::vector<uint32_t>> users_left(count);
  std::vector<double> gain(count, 0.0);  // bytes that running the node would add
  for (uint32_t node = 0; node < count; ++node) {
    users_left[node].assign(pieces.nodes[node].outputs.size(), 0);
  }
  const auto bytes = [&](const Value& value) {
    return pieces.nodes[value.producer].outputs[value.output].size.at(rows);
  };
  for (uint32_t node = 0; node < count; ++node) {
    for (const cost::ProfileUse& use : pieces.nodes[node].inputs) {
      if (!use.is_input) reads[node].push_back({use.node, use.output});
    }
    std::ranges::sort(reads[node]);
    reads[node].erase(std::unique(reads[node].begin(), reads[node].end()), reads[node].end());
    for (const Value& value : reads[node]) {
      ++users_left[value.producer][value.output];
      if (next[value.producer].empty() || next[value.producer].back() != node) {
        next[value.producer].push_back(node);
        ++waits_for[node];
      }
    }
  }
  std::vector<std::vector<std::vector<uint32_t>>> readers(count);
  for (uint32_t node = 0; node < count; ++node) readers[node].resize(users_left[node].size());
  for (uint32_t node = 0; node < count; ++node) {
    for (const Value& value : reads[node]) readers[value.producer][value.output].push_back(node);
    for (uint32_t output = 0; output < users_left[node].size(); ++output) {
      if (users_left[node][output] > 0) gain[node] += bytes({node, output});
    }
  }
  for (uint32_t node = 0; node < count; ++node) {
    for (const Value& value : reads[node]) {
      if (users_left[value.producer][value.output] == 1) gain[node] -= bytes(value);
    }
  }
  std::set<std::pair<double, uint32_t>> ready;
  for (uint32_t node = 0; node < count; ++node) {
    if (waits_for[node] == 0) ready.emplace(gain[node], node);
  }
  std::vector<uint32_t> order;
  std::vector<bool> done(count, false);
  while (!ready.empty()) {
    const uint32_t node = ready.begin()->second;
    ready.erase(ready.begin());
    done[node] = true;
    order.push_back(node);
    for (const Value& value : reads[node]) {
      if (--users_left[value.producer][value.output] != 1) continue;
      // The one user that is left would free the value.
      for (const uint32_t user : readers[value.producer][value.output]) {
        if (done[user]) continue;
        const bool listed = ready.erase({gain[user], user}) > 0;
        gain[user] -= bytes(value);
        if (listed) ready.emplace(gain[user], user);
      }
    }
    for (const uint32_t user : next[node]) {
      if (--waits_for[user] == 0) ready.emplace(gain[user], user);
    }
  }
  return order;
}

std::vector<std::vector<uint32_t>> linear_orders(const cost::GraphProfile& pieces, double rows) {
  std::vector<uint32_t> given(pieces.nodes.size());
  std::iota(given.begin(), given.end(), 0);
  std::vector<std::vector<uint32_t>> orders;
  for (std::vector<uint32_t>& order :
       std::vector{given, depth_first_order(pieces), fewest_bytes_order(pieces, rows)}) {
    if (std::ranges::find(orders, order) == orders.end()) orders.push_back(std::move(order));
  }
  std::ranges::stable_sort(orders, {}, [&](const std::vector<uint32_t>& order) {
    const std::vector<double> cut = cut_bytes(pieces, order, rows);
    return std::accumulate(cut.begin(), cut.end(), 0.0);
  });
  return orders;
}

}  // namespace rannc::partition
