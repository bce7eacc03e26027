#include "plan/lower/check_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rannc/ir/rewrites.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

std::vector<int64_t> sizes_at(const ir::Value& value, int64_t rows) {
  std::vector<int64_t> sizes;
  for (const ir::AffineInt& dim : value.dims) sizes.push_back(dim.at(rows));
  return sizes;
}

/// Of [N, C, ...].
int64_t values_per_channel(const std::vector<int64_t>& sizes) {
  int64_t values = 1;
  for (size_t dim = 0; dim < sizes.size(); ++dim) values *= dim == 1 ? 1 : sizes[dim];
  return values;
}

}  // namespace

void check_statistics(const Program& program, const ir::Graph& graph, const Placement& placement) {
  for (ir::NodeId id : ir::batch_normalisations(graph)) {
    const int stage = placement.stage_of[id.index];
    if (stage == Placement::kCloned) continue;
    const ir::Node& node = graph[id];
    const ir::Value& input = graph[graph.operands(id).front()];
    if (node.whole_batch) {
      const std::vector<int64_t> sizes = sizes_at(input, program.split.global_rows());
      if (values_per_channel(sizes) != 1) continue;
      throw PlanError(fmt::format(
          "module '{}' would normalise the whole batch over a single value per channel: it has 1 "
          "row (torch: Expected more than 1 value per channel when training, got input size "
          "[{}]).\n  Try a batch of at least 2 rows on all ranks together, or drop_last=True.",
          node.module, fmt::join(sizes, ", ")));
    }
    for (size_t k = 0; k < program.split.micro_rows.size(); ++k) {
      for (size_t replica = 0; replica < program.shares[stage].size(); ++replica) {
        const int64_t rows = program.shares[stage][replica][k].size();
        if (rows == 0) continue;
        const std::vector<int64_t> sizes = sizes_at(input, rows);
        if (values_per_channel(sizes) != 1) continue;
        throw PlanError(fmt::format(
            "module '{}': rank {} would normalise micro-batch {} over a single value per channel: "
            "its share has {} of the {} rows of the batch (torch: Expected more than 1 value per "
            "channel when training, got input size [{}]).\n"
            "  Try a larger batch, fewer micro-batches (pipeline_num) or replicas (replica_nums), "
            "or drop_last=True.",
            node.module, program.mesh(stage).rank(static_cast<int>(replica), 0), k, rows,
            program.split.global_rows(), fmt::join(sizes, ", ")));
      }
    }
  }
}

}  // namespace rannc::plan
