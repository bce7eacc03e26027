#include "partition/blocks/contract.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using cost::GraphProfile;
using cost::ProfileNode;
using cost::ProfileUse;

/// Fills the costs of `target` with those of `nodes`, at each of `rows`.
void sum_costs(const GraphProfile& profile, const std::vector<uint32_t>& nodes,
               const std::vector<int64_t>& rows, bool has_host_times, ProfileNode& target) {
  for (std::vector<double>* costs :
       {&target.forward_ns, &target.backward_ns, &target.saved_bytes, &target.workspace_bytes}) {
    costs->assign(rows.size(), 0.0);
  }
  if (has_host_times) {
    target.forward_host_ns.assign(rows.size(), 0.0);
    target.backward_host_ns.assign(rows.size(), 0.0);
  }
  for (const uint32_t index : nodes) {
    const ProfileNode& node = profile.nodes[index];
    for (size_t k = 0; k < rows.size(); ++k) {
      const auto at = [&](const std::vector<double>& values) {
        return cost::optional_cost_at(values, profile.rows, static_cast<double>(rows[k]));
      };
      target.forward_ns[k] += at(node.forward_ns);
      target.backward_ns[k] += at(node.backward_ns);
      target.saved_bytes[k] += at(node.saved_bytes);
      target.workspace_bytes[k] = std::max(target.workspace_bytes[k], at(node.workspace_bytes));
      if (!has_host_times) continue;
      target.forward_host_ns[k] += at(node.forward_host_ns);
      target.backward_host_ns[k] += at(node.backward_host_ns);
    }
  }
}

uint64_t key(const ProfileUse& use) { return (uint64_t{use.node} << 32) | use.output; }

}  // namespace

GraphProfile contract(const GraphProfile& profile, const std::vector<std::vector<uint32_t>>& parts,
                      const std::vector<int64_t>& rows) {
  GraphProfile result;
  result.name = profile.name;
  result.dtype = profile.dtype;
  result.rows = rows;
  result.inputs = profile.inputs;
  result.params = profile.params;
  result.nodes.resize(parts.size());
  const bool has_host_times = profile.has_host_times();

  std::vector<uint32_t> part_of(profile.nodes.size(), UINT32_MAX);
  for (uint32_t part = 0; part < parts.size(); ++part) {
    for (const uint32_t node : parts[part]) part_of[node] = part;
  }
  std::unordered_map<uint64_t, uint32_t> output_of;  // value that leaves its part -> its output
  std::unordered_map<uint64_t, uint32_t> value_reader, input_reader;  // -> last part that reads it
  const auto first_read = [](auto& readers, uint64_t what, uint32_t part) {
    const auto [place, added] = readers.emplace(what, part);
    return added || std::exchange(place->second, part) != part;
  };
  for (uint32_t part = 0; part < parts.size(); ++part) {
    ProfileNode& target = result.nodes[part];
    target.name = std::to_string(part);
    target.op = "block";
    for (const uint32_t index : parts[part]) {
      const ProfileNode& node = profile.nodes[index];
      target.params.insert(target.params.end(), node.params.begin(), node.params.end());
      for (const ProfileUse& use : node.inputs) {
        if (use.is_input) {
          if (first_read(input_reader, use.node, part)) {
            target.inputs.push_back({.is_input = true, .node = use.node, .output = 0});
          }
          continue;
        }
        const uint32_t source = part_of[use.node];
        if (source == part) continue;
        RANNC_CHECK(source < part, "part " + target.name + " reads a value of a later part");
        std::vector<cost::ProfileOutput>& outputs = result.nodes[source].outputs;
        const auto [place, added] =
            output_of.emplace(key(use), static_cast<uint32_t>(outputs.size()));
        if (added) outputs.push_back(profile.nodes[use.node].outputs[use.output]);
        if (first_read(value_reader, key(use), part)) {
          target.inputs.push_back({.is_input = false, .node = source, .output = place->second});
        }
      }
    }
    std::ranges::sort(target.params);
    target.params.erase(std::unique(target.params.begin(), target.params.end()),
                        target.params.end());
    sum_costs(profile, parts[part], rows, has_host_times, target);
  }
  return result;
}

}  // namespace rannc::partition
