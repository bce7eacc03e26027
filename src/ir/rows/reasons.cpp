#include <fmt/format.h>

#include <algorithm>

#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

std::string with_place(std::string_view reason, const Node& node) {
  return fmt::format("{} ({})", reason, module_place(node));
}

}  // namespace

std::string why_rows_interact(const Graph& graph) {
  const std::vector<RowMix> mixes = row_mixes(graph);
  return mixes.empty() ? "" : with_place(mixes.front().reason, graph[mixes.front().node]);
}

std::string why_rows_may_interact(const Graph& graph) {
  const auto is_proved = [&](ValueId output) {
    return !output.valid() || graph[output].rows.proved;
  };
  for (const Node& node : graph.nodes) {
    if (std::ranges::all_of(node.outputs, is_proved)) continue;
    return fmt::format(
        "it is not known whether {} keeps the rows of the batch apart, and the self-check did not "
        "prove it ({})",
        node.op, module_place(node));
  }
  return "";
}

std::string why_shares_differ(const Graph& graph) {
  if (std::string reason = why_rows_interact(graph); !reason.empty()) return reason;
  for (const Node& node : graph.nodes) {
    if (node.by_share) {
      return with_place(fmt::format("{} is not linear in a mean over the batch", node.op), node);
    }
    if (node.whole_batch) {
      return with_place("batch normalisation takes the statistics of the whole batch", node);
    }
  }
  const std::vector<RunningStatistic> statistics = running_statistics(graph);
  return statistics.empty() ? ""
                            : with_place("batch normalisation takes the statistics of its part",
                                         graph[statistics.front().node]);
}

}  // namespace rannc::ir
