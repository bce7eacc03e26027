#include "rannc_plan/inputs.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "rannc/util/error.h"
#include "rannc_plan/files.h"

namespace rannc::rannc_plan {
namespace {

partition::Request request_for(const std::string& path, std::optional<int64_t> global_batch,
                               int ranks) {
  partition::Request request;
  if (!path.empty()) {
    request = load_request(path);
  } else if (global_batch) {
    request.global_batch = *global_batch;
  } else {
    throw ConfigError(
        "a plan needs the rows of a global batch: give --request FILE, or --global-batch ROWS for "
        "the default request");
  }
  call_by_path(path.empty() ? "--global-batch" : path,
               "plan request: ", [&] { partition::verify(request, ranks); });
  return request;
}

}  // namespace

Inputs load_inputs(const std::string& graph, const std::string& cluster, const std::string& request,
                   std::optional<int64_t> global_batch) {
  // The small files first: what is wrong with them is said at once.
  Inputs inputs;
  inputs.cluster = load_cluster(cluster);
  inputs.request = request_for(request, global_batch, inputs.cluster.ranks());
  inputs.graph = load_graph(graph);
  return inputs;
}

bool returns_loss(const cost::GraphProfile& graph) {
  std::set<std::pair<uint32_t, uint32_t>> read;
  for (const cost::ProfileNode& node : graph.nodes) {
    for (const cost::ProfileUse& use : node.inputs) {
      if (!use.is_input) read.emplace(use.node, use.output);
    }
  }
  for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
    const std::vector<cost::ProfileOutput>& outputs = graph.nodes[node].outputs;
    for (uint32_t output = 0; output < outputs.size(); ++output) {
      const auto& [size, grad] = outputs[output];
      const bool number = size.bytes_per_row == 0 && size.fixed_bytes <= 8;  // a float64
      if (grad && number && read.count({node, output}) == 0) return true;
    }
  }
  return false;
}

}  // namespace rannc::rannc_plan
