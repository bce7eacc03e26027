#pragma once

#include <optional>
#include <string>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::rannc_plan {

/// What a plan is made for.
struct Inputs {
  cost::GraphProfile graph;
  cost::Cluster cluster;
  partition::Request request;
};

/// Reads the files. Without a request, the default one for `global_batch`. Throws ConfigError, also
/// when the request asks for what the cluster does not have.
[[nodiscard]] Inputs load_inputs(const std::string& graph, const std::string& cluster,
                                 const std::string& request, std::optional<int64_t> global_batch);

/// Whether the model gives a number that takes a gradient and that none of its nodes reads.
[[nodiscard]] bool returns_loss(const cost::GraphProfile& graph);

}  // namespace rannc::rannc_plan
