#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::benchmarks {

/// A transformer: `layers` times `per_layer` nodes with a skip around each layer, behind an
/// embedding that is tied to the head. Times, bytes and parameters of hidden size `hidden` and
/// sequence length 2048 at 100 Tflop/s, half precision. Of version 2, as a captured one: half of
/// what a node saves it has in common with the node before it, as what one makes the other reads.
inline cost::GraphProfile transformer(int layers, int per_layer, double hidden,
                                      double vocabulary = 51200) {
  constexpr double kSequence = 2048, kFlopsPerNs = 1e5;
  cost::GraphProfile profile;
  profile.version = 2;
  profile.name = "transformer";
  profile.dtype = "bfloat16";
  profile.rows = {1, 4};
  profile.inputs = {{.name = "tokens", .size = {8 * kSequence, 0}}};
  profile.params = {{.id = "embedding", .bytes = 2 * vocabulary * hidden}};
  const double value = 2 * kSequence * hidden, layer_params = 12 * hidden * hidden;
  const auto add = [&](const std::string& name, const std::string& op, double flops, double saved,
                       std::vector<uint32_t> reads) {
    cost::ProfileNode& node = profile.nodes.emplace_back();
    node.name = name;
    node.op = op;
    if (reads.empty()) node.inputs = {{true, 0, 0}};
    for (const uint32_t read : reads) node.inputs.push_back({false, read, 0});
    node.outputs = {{.size = {value, 0}, .grad = true}};
    const double ns = flops / kFlopsPerNs;
    node.forward_ns = {5e3 + ns, 5e3 + 4 * ns};
    node.backward_ns = {1e4 + 2 * ns, 1e4 + 8 * ns};
    const auto index = static_cast<uint32_t>(profile.nodes.size() - 1);
    node.adds_in_place = true;
    node.saved_bytes = {saved / 2, 2 * saved};
    cost::SavedStorage& storage = profile.saved.emplace_back();
    if (index > 0) storage.nodes.push_back(index - 1);
    storage.nodes.push_back(index);
    storage.bytes = node.saved_bytes;
    node.workspace_bytes = {1e6, 4e6};
  };
  add("embedding", "embedding", 1e9, value, {});
  profile.nodes.back().params = {0};
  for (int layer = 0; layer < layers; ++layer) {
    const auto entry = static_cast<uint32_t>(profile.nodes.size() - 1);
    double weights = 0;
    for (int k = 0; k < per_layer; ++k) weights += 1 + k % 3;
    for (int k = 0; k < per_layer; ++k) {
      const auto before = static_cast<uint32_t>(profile.nodes.size() - 1);
      const double part = (1 + k % 3) / weights;
      std::vector<uint32_t> reads{before};
      if (k > 0 && k == per_layer - 1) reads.push_back(entry);
      add("layers." + std::to_string(layer) + ".op" + std::to_string(k), "op" + std::to_string(k),
          2 * kSequence * layer_params * part, 17 * value * part, reads);
      profile.nodes.back().params = {static_cast<uint32_t>(profile.params.size())};
      profile.params.push_back(
          {.id = profile.nodes.back().name + ".weight", .bytes = 2 * layer_params * part});
    }
  }
  add("head", "linear", 2 * kSequence * vocabulary * hidden, 2 * kSequence * vocabulary,
      {static_cast<uint32_t>(profile.nodes.size() - 1)});
  profile.nodes.back().params = {0};
  return profile;
}

/// Hosts of eight devices.
inline cost::Cluster hosts_of_8(int hosts, double memory_gb = 80) {
  cost::Cluster result;
  result.hosts = hosts;
  result.devices_per_host = 8;
  result.device_memory_bytes = memory_gb * 1e9;
  result.intra_host = {3e11, 5e3};
  result.inter_host = {2.5e10, 1e4};
  result.links_per_host = 8;
  return result;
}

inline partition::Request adam(int64_t batch) {
  partition::Request result;
  result.global_batch = batch;
  result.optimizer_bytes_per_param_byte = 6;
  return result;
}

}  // namespace rannc::benchmarks
