#include "partition/blocks/block_costs.h"

#include <algorithm>
#include <utility>

namespace rannc::partition {
namespace {

/// Whether the extension of `values` to 0 rows or without end goes below 0.
bool falls_below_zero(const std::vector<double>& values, const std::vector<int64_t>& points) {
  const size_t count = values.size();
  if (count < 2) return false;  // proportional
  if (values[count - 1] < values[count - 2]) return true;
  const double slope = (values[1] - values[0]) / static_cast<double>(points[1] - points[0]);
  return values[0] - slope * static_cast<double>(points[0]) < 0;
}

}  // namespace

std::vector<std::vector<uint32_t>> single_blocks(size_t nodes) {
  std::vector<std::vector<uint32_t>> blocks(nodes);
  for (uint32_t node = 0; node < nodes; ++node) blocks[node] = {node};
  return blocks;
}

BlockCosts::BlockCosts(const cost::GraphProfile& profile, std::vector<std::vector<uint32_t>> blocks)
    : profile_(profile), blocks_(std::move(blocks)), has_host_times_(profile.has_host_times()) {
  for (const cost::ProfileNode& node : profile.nodes) {
    linear_ = linear_ && !falls_below_zero(node.forward_ns, profile.rows) &&
              !falls_below_zero(node.backward_ns, profile.rows) &&
              !falls_below_zero(node.saved_bytes, profile.rows) &&
              !falls_below_zero(node.forward_host_ns, profile.rows) &&
              !falls_below_zero(node.backward_host_ns, profile.rows);
  }
  if (!linear_) return;
  const auto sums = [&](std::vector<double> cost::ProfileNode::*costs) {
    std::vector<std::vector<double>> result(blocks_.size(),
                                            std::vector<double>(profile.rows.size(), 0.0));
    for (size_t block = 0; block < blocks_.size(); ++block) {
      for (const uint32_t node : blocks_[block]) {
        const std::vector<double>& values = profile.nodes[node].*costs;
        for (size_t k = 0; k < values.size(); ++k) result[block][k] += values[k];
      }
    }
    return result;
  };
  forward_ = sums(&cost::ProfileNode::forward_ns);
  backward_ = sums(&cost::ProfileNode::backward_ns);
  saved_ = sums(&cost::ProfileNode::saved_bytes);
  if (!has_host_times_) return;
  forward_host_ = sums(&cost::ProfileNode::forward_host_ns);
  backward_host_ = sums(&cost::ProfileNode::backward_host_ns);
}

BlockCosts::BlockCosts(const BlockCosts& source, std::vector<uint32_t> order)
    : profile_(source.profile_),
      source_(&source),
      order_(std::move(order)),
      has_host_times_(source.has_host_times_) {}

const BlockCosts::AtRows& BlockCosts::at(int64_t rows) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<AtRows>& entry = known_[rows];
  if (!entry) {
    const auto count = static_cast<double>(rows);
    entry = std::make_unique<AtRows>(source_   ? in_order(source_->at(rows))
                                     : linear_ ? of_sums(count)
                                               : of_nodes(count));
  }
  return *entry;
}

BlockCosts::AtRows BlockCosts::of_nodes(double rows) const {
  AtRows result;
  for (std::vector<double>* costs :
       {&result.forward_ns, &result.backward_ns, &result.saved_bytes, &result.workspace_bytes}) {
    costs->assign(blocks_.size(), 0.0);
  }
  if (has_host_times_) {
    result.forward_host_ns.assign(blocks_.size(), 0.0);
    result.backward_host_ns.assign(blocks_.size(), 0.0);
  }
  const auto at = [&](const std::vector<double>& values) {
    return cost::optional_cost_at(values, profile_.rows, rows);
  };
  for (size_t block = 0; block < blocks_.size(); ++block) {
    for (const uint32_t index : blocks_[block]) {
      const cost::ProfileNode& node = profile_.nodes[index];
      result.forward_ns[block] += at(node.forward_ns);
      result.backward_ns[block] += at(node.backward_ns);
      result.saved_bytes[block] += at(node.saved_bytes);
      result.workspace_bytes[block] =
          std::max(result.workspace_bytes[block], at(node.workspace_bytes));
      if (!has_host_times_) continue;
      result.forward_host_ns[block] += at(node.forward_host_ns);
      result.backward_host_ns[block] += at(node.backward_host_ns);
    }
  }
  return result;
}

BlockCosts::AtRows BlockCosts::in_order(const AtRows& costs) const {
  AtRows result;
  for (const uint32_t block : order_) {
    result.forward_ns.push_back(costs.forward_ns[block]);
    result.backward_ns.push_back(costs.backward_ns[block]);
    result.saved_bytes.push_back(costs.saved_bytes[block]);
    result.workspace_bytes.push_back(costs.workspace_bytes[block]);
    if (!has_host_times_) continue;
    result.forward_host_ns.push_back(costs.forward_host_ns[block]);
    result.backward_host_ns.push_back(costs.backward_host_ns[block]);
  }
  return result;
}

BlockCosts::AtRows BlockCosts::of_sums(double rows) const {
  AtRows result;
  for (size_t block = 0; block < blocks_.size(); ++block) {
    result.forward_ns.push_back(cost::cost_at(forward_[block], profile_.rows, rows));
    result.backward_ns.push_back(cost::cost_at(backward_[block], profile_.rows, rows));
    result.saved_bytes.push_back(cost::cost_at(saved_[block], profile_.rows, rows));
    if (has_host_times_) {
      result.forward_host_ns.push_back(cost::cost_at(forward_host_[block], profile_.rows, rows));
      result.backward_host_ns.push_back(cost::cost_at(backward_host_[block], profile_.rows, rows));
    }
    // The largest of several is not linear in the rows.
    double workspace = 0;
    for (const uint32_t index : blocks_[block]) {
      const std::vector<double>& values = profile_.nodes[index].workspace_bytes;
      if (!values.empty()) {
        workspace = std::max(workspace, cost::cost_at(values, profile_.rows, rows));
      }
    }
    result.workspace_bytes.push_back(workspace);
  }
  return result;
}

}  // namespace rannc::partition
