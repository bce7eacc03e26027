#include "rannc_plan/inputs.h"

#include <fmt/format.h>

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

}  // namespace rannc::rannc_plan
