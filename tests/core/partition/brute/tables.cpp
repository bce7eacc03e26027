#include "partition/brute/tables.h"

#include <algorithm>
#include <stdexcept>

namespace rannc::partition::brute {
namespace {

/// The page's rule: linear between neighbours, the nearest segment extended, never below 0.
double at_rows(const std::vector<double>& values, const std::vector<int64_t>& points, double rows) {
  if (points.size() == 1) return values[0] * rows / static_cast<double>(points[0]);
  size_t right = 1;
  while (right + 1 < points.size() && rows > static_cast<double>(points[right])) ++right;
  const auto x0 = static_cast<double>(points[right - 1]);
  const auto x1 = static_cast<double>(points[right]);
  const double y0 = values[right - 1], y1 = values[right];
  return std::max(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0));
}

}  // namespace

Tables::Tables(const cost::GraphProfile& profile, const cost::Cluster& cluster,
               const Request& request)
    : profile_(profile),
      nodes_(static_cast<int>(profile.nodes.size())),
      memory_limit_(cluster.device_memory_bytes * (1 - request.memory_margin)) {
  if (nodes_ > kMostNodes) throw std::runtime_error("brute force: too many nodes");
  const auto count = static_cast<size_t>(nodes_);
  sources_.resize(count);
  groups_.resize(count);
  for (const cost::ProfileInput& input : profile.inputs) {
    values_.push_back({-1, 0, input.size, false});
  }
  std::vector<size_t> first_value;
  for (size_t k = 0; k < count; ++k) {
    first_value.push_back(values_.size());
    for (const cost::ProfileOutput& output : profile.nodes[k].outputs) {
      values_.push_back({static_cast<int>(k), 0, output.size, output.grad});
    }
  }
  for (const cost::ProfileParam& param : profile.params) {
    const double gradient =
        param.trainable ? param.bytes * request.gradient_bytes_per_param_byte : 0;
    double optimizer = 0;
    if (param.trainable) {
      optimizer = param.optimizer_bytes >= 0 ? param.optimizer_bytes
                                             : param.bytes * request.optimizer_bytes_per_param_byte;
      optimizer += param.bytes * request.master_bytes_per_param_byte;
    }
    params_.push_back({0, param.bytes, gradient, optimizer});
  }
  for (size_t k = 0; k < count; ++k) {
    const cost::ProfileNode& node = profile.nodes[k];
    const Mask self = Mask{1} << k;
    for (const cost::ProfileUse& use : node.inputs) {
      values_[use.is_input ? use.node : first_value[use.node] + use.output].users |= self;
      if (!use.is_input) sources_[k] |= Mask{1} << use.node;
    }
    for (const uint32_t param : node.params) params_[param].users |= self;
    for (size_t other = 0; other < count; ++other) {
      const bool together = !node.group.empty() && profile.nodes[other].group == node.group;
      if (other == k || together) groups_[k] |= Mask{1} << other;
    }
  }
  weights_.resize(size_t{1} << nodes_);
  for (Mask mask = 0; mask < weights_.size(); ++mask) {
    for (const Param& param : params_) {
      if ((param.users & mask) == 0) continue;
      weights_[mask].bytes += param.bytes;
      weights_[mask].gradient += param.gradient;
      weights_[mask].optimizer += param.optimizer;
    }
  }
  shares_.resize(static_cast<size_t>(request.global_batch) + 1);
  crossings_.resize(weights_.size() * weights_.size());
  crossing_known_.resize(crossings_.size());
}

Share Tables::measure(Mask mask, int64_t rows) const {
  Share share;
  share.known = true;
  const auto b = static_cast<double>(rows);
  for (int k = 0; k < nodes_; ++k) {
    if ((mask >> k & 1) == 0) continue;
    const cost::ProfileNode& node = profile_.nodes[static_cast<size_t>(k)];
    share.forward_ns += at_rows(node.forward_ns, profile_.rows, b);
    share.backward_ns += at_rows(node.backward_ns, profile_.rows, b);
    if (!node.forward_host_ns.empty()) {
      share.issue_forward_ns += at_rows(node.forward_host_ns, profile_.rows, b);
    }
    if (!node.backward_host_ns.empty()) {
      share.issue_backward_ns += at_rows(node.backward_host_ns, profile_.rows, b);
    }
    share.saved += at_rows(node.saved_bytes, profile_.rows, b);
    if (!node.workspace_bytes.empty()) {
      share.workspace = std::max(share.workspace, at_rows(node.workspace_bytes, profile_.rows, b));
    }
  }
  share.forward_ns = std::max(share.forward_ns, share.issue_forward_ns);
  share.backward_ns = std::max(share.backward_ns, share.issue_backward_ns);
  for (const Value& value : values_) {
    const double bytes = value.size.bytes_per_row * b + value.size.fixed_bytes;
    const bool produced = value.producer >= 0 && (mask >> value.producer & 1) != 0;
    if (produced && (value.users & ~mask) != 0) {
      share.out += bytes;
      if (value.grad) share.out_gradients += bytes;
    }
    if (!produced && value.producer >= 0 && (value.users & mask) != 0 && value.grad) {
      share.in_gradients += bytes;
    }
    if (!produced && (value.users & mask) != 0)
      (value.producer < 0 ? share.gin : share.in) += bytes;
  }
  for (const cost::SavedStorage& storage : profile_.saved) {
    const bool here = std::ranges::any_of(storage.nodes, [&](uint32_t k) { return mask >> k & 1; });
    if (here) share.saved += at_rows(storage.bytes, profile_.rows, b);
  }
  return share;
}

/// Each node's moment from nothing: no sums that grow.
Backward Tables::run_backward(Mask mask, double rows, Mask made) const {
  const auto gradients_of = [&](Mask nodes) {
    double bytes = 0;
    for (size_t p = 0; p < params_.size(); ++p) {
      if ((params_[p].users & nodes) != 0 && (params_[p].users & made) == 0) {
        bytes += params_[p].gradient;
      }
    }
    return bytes;
  };
  Backward result;
  result.gradients = gradients_of(mask);
  for (int k = 0; k < nodes_; ++k) {
    if ((mask >> k & 1) == 0) continue;
    const cost::ProfileNode& node = profile_.nodes[static_cast<size_t>(k)];
    const Mask to_here = mask & ((Mask{2} << k) - 1), behind = mask & ~to_here;
    double bytes = at_rows(node.workspace_bytes, profile_.rows, rows);
    for (int n = 0; n <= k; ++n) {
      if ((mask >> n & 1) == 0) continue;
      bytes += at_rows(profile_.nodes[static_cast<size_t>(n)].saved_bytes, profile_.rows, rows);
    }
    for (const cost::SavedStorage& storage : profile_.saved) {
      const bool held =
          std::ranges::any_of(storage.nodes, [&](uint32_t n) { return to_here >> n & 1; });
      if (held) bytes += at_rows(storage.bytes, profile_.rows, rows);
    }
    for (const Value& value : values_) {
      if (value.producer < 0 || !value.grad || value.users == 0) continue;
      const bool home = (mask >> value.producer & 1) != 0;
      if (home && value.producer >= k) continue;
      const bool used = (value.users & behind) != 0;
      if (used || (home && (value.users & ~mask) != 0)) {
        bytes += value.size.bytes_per_row * rows + value.size.fixed_bytes;
      }
    }
    result.later = std::max(result.later, bytes);
    const Mask self = node.adds_in_place ? Mask{1} << k : 0;
    result.first = std::max(result.first, bytes + gradients_of(behind | self));
  }
  return result;
}

const Backward& Tables::backward(Mask mask, int64_t rows, Mask made) {
  const auto [known, added] = backwards_.try_emplace({mask, rows, made});
  if (added) known->second = run_backward(mask, static_cast<double>(rows), made);
  return known->second;
}

const Share& Tables::share(Mask mask, int64_t rows) {
  std::vector<Share>& by_mask = shares_.at(static_cast<size_t>(rows));
  if (by_mask.empty()) by_mask.resize(size_t{1} << nodes_);
  Share& share = by_mask[mask];
  if (!share.known) share = measure(mask, rows);
  return share;
}

const Crossing& Tables::crossing(Mask from, Mask to) {
  const size_t index = (size_t{from} << nodes_) + to;
  Crossing& crossing = crossings_[index];
  if (crossing_known_[index]) return crossing;
  crossing_known_[index] = true;
  for (const Value& value : values_) {
    if (value.producer < 0 || (from >> value.producer & 1) == 0 || (value.users & to) == 0)
      continue;
    crossing.forward = true;
    crossing.forward_per_row += value.size.bytes_per_row;
    crossing.forward_fixed += value.size.fixed_bytes;
    if (!value.grad) continue;
    crossing.backward = true;
    crossing.backward_per_row += value.size.bytes_per_row;
    crossing.backward_fixed += value.size.fixed_bytes;
  }
  return crossing;
}

void Tables::tied(const std::vector<Mask>& stages, std::vector<Tied>& result) const {
  result.clear();
  for (const Param& param : params_) {
    uint32_t users = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      if ((param.users & stages[s]) != 0) users |= 1u << s;
    }
    if ((users & (users - 1)) == 0 || param.gradient == 0) continue;
    const auto known = std::ranges::find(result, users, &Tied::stages);
    if (known != result.end()) {
      known->gradient_bytes += param.gradient;
    } else {
      result.push_back({users, param.gradient});
    }
  }
  // Lists of stages in lexicographic order: at the lowest stage that only one has, the one that has
  // it comes first, unless the other has ended by then, which makes it a prefix.
  std::ranges::sort(result, [](const Tied& a, const Tied& b) {
    const uint32_t differ = a.stages ^ b.stages;
    if (differ == 0) return false;
    const uint32_t lowest = differ & (~differ + 1);
    const uint32_t above = ~(lowest | (lowest - 1));
    return (a.stages & lowest) != 0 ? (b.stages & above) != 0 : (a.stages & above) == 0;
  });
}

double Tables::own_gradient_bytes(Mask stage) const {
  double bytes = 0;
  for (const Param& param : params_) {
    if ((param.users & stage) != 0 && (param.users & ~stage) == 0) bytes += param.gradient;
  }
  return bytes;
}

}  // namespace rannc::partition::brute
