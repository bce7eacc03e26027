#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition::testing {

/// One node of a chain.
struct Link {
  double time_ns = 100;  ///< forward; backward takes twice as long, per row
  double bytes_per_row = 8;
  double param_bytes = 0;
  double saved_per_row = 0;
};

/// A profile in which node k reads node k-1 ("n0" reads the graph input "x"); costs proportional to
/// the rows.
inline cost::GraphProfile chain(const std::vector<Link>& links) {
  cost::GraphProfile profile;
  profile.name = "chain";
  profile.rows = {1};
  profile.inputs = {{.name = "x", .size = {8, 0}}};
  for (uint32_t k = 0; k < links.size(); ++k) {
    const Link& link = links[k];
    cost::ProfileNode node;
    node.name = "n" + std::to_string(k);
    node.op = "op";
    node.inputs = {k == 0 ? cost::ProfileUse{true, 0, 0} : cost::ProfileUse{false, k - 1, 0}};
    node.outputs = {{.size = {link.bytes_per_row, 0}, .grad = true}};
    node.forward_ns = {link.time_ns};
    node.backward_ns = {2 * link.time_ns};
    node.saved_bytes = {link.saved_per_row};
    node.workspace_bytes = {0};
    if (link.param_bytes > 0) {
      node.params = {static_cast<uint32_t>(profile.params.size())};
      profile.params.push_back({.id = "p" + std::to_string(k), .bytes = link.param_bytes});
    }
    profile.nodes.push_back(std::move(node));
  }
  return profile;
}

/// Hosts of `devices` with fast links: 1 byte per ns inside, a tenth between hosts.
inline cost::Cluster cluster(int hosts, int devices, double memory_bytes = 1e15) {
  cost::Cluster result;
  result.hosts = hosts;
  result.devices_per_host = devices;
  result.device_memory_bytes = memory_bytes;
  result.intra_host = {1e9, 10};
  result.inter_host = {1e8, 100};
  return result;
}

/// Whole numbers everywhere, so that sums are exact and ties are frequent: skips, values without
/// gradient, several outputs, tied and frozen parameters, fixed sizes.
inline cost::GraphProfile random_profile(std::mt19937& random, int nodes) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  cost::GraphProfile profile;
  profile.name = "random";
  profile.rows = {1, 4};
  profile.inputs = {{.name = "x", .size = {double(draw(0, 9)), 0}},
                    {.name = "y", .size = {double(draw(0, 9)), double(draw(0, 9))}}};
  const int params = draw(0, nodes);
  for (int k = 0; k < params; ++k) {
    profile.params.push_back({.id = "p" + std::to_string(k),
                              .bytes = double(10 * draw(0, 40)),
                              .trainable = draw(0, 4) > 0,
                              .optimizer_bytes = draw(0, 3) == 0 ? double(draw(0, 50)) : -1});
  }
  for (int k = 0; k < nodes; ++k) {
    cost::ProfileNode node;
    node.name = "n" + std::to_string(k);
    node.op = "op";
    if (k == 0 || draw(0, 5) == 0) node.inputs.push_back({true, uint32_t(draw(0, 1)), 0});
    for (int reads = k == 0 ? 0 : draw(1, 3); reads > 0; --reads) {
      // Mostly the neighbour, at times a skip.
      const auto from = static_cast<uint32_t>(draw(0, 2) > 0 ? k - 1 : draw(0, k - 1));
      const auto outputs = static_cast<int>(profile.nodes[from].outputs.size());
      node.inputs.push_back({false, from, uint32_t(draw(0, outputs - 1))});
    }
    for (int outputs = draw(0, 4) == 0 ? 2 : 1; outputs > 0; --outputs) {
      node.outputs.push_back(
          {.size = {double(draw(0, 60)), double(draw(0, 3) == 0 ? 8 : 0)}, .grad = draw(0, 4) > 0});
    }
    const int uses = params == 0 ? 0 : draw(0, 2);
    for (int use = 0; use < uses; ++use) {
      const auto param = uint32_t(draw(0, params - 1));
      if (node.params.empty() || node.params[0] != param) node.params.push_back(param);
    }
    const double base = 6 * draw(0, 20), slope = 6 * draw(1, 10);
    node.forward_ns = {base + slope, base + 4 * slope};
    node.backward_ns = {2 * base + 3 * slope, 2 * base + 12 * slope};
    const double saved = draw(0, 60);
    node.saved_bytes = {saved, 4 * saved};
    node.workspace_bytes = {double(draw(0, 30)), double(draw(30, 60))};
    profile.nodes.push_back(std::move(node));
  }
  return profile;
}

}  // namespace rannc::partition::testing
