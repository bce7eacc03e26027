#pragma once

#include <cstdint>
#include <vector>

#include "rannc/plan/plan.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// How many ranks compute a share of a stage together; the same for all stages.
[[nodiscard]] int places(const Plan& plan);

/// The plan as one place of every group runs it: each group is a rank, numbered by groups. So
/// whatever is between replicas or stages happens between ranks of equal place. Throws PlanError
/// unless all stages have one mesh, and the ranks of a group follow each other and begin at a
/// multiple of their number.
[[nodiscard]] Plan plane_of(const Plan& plan);

/// How the ranks of a group compute layers together, and what sending takes between them.
struct Grouping {
  int places = 1;
  std::vector<std::string> factors;  ///< of the whole graph
  double latency_ns = 0;             ///< of a message
  double ns_per_byte = 0;
  bool sequence_parallel = false;
};
/// The other way round: `plan` is of groups, each stage cut as the whole graph is.
[[nodiscard]] Plan of_groups(Plan plan, const ir::Graph& graph, const Grouping& grouping);

/// Rows of each group: those that its ranks feed.
[[nodiscard]] std::vector<int64_t> rows_of_groups(const std::vector<int64_t>& local_rows,
                                                  int places);

/// The same nodes with the whole batch at once: one micro-batch on the first replica of each stage,
/// under fill-drain. The ranges of blocks that an interleaved plan gives a group of ranks become
/// ranges in a row, on ranks that may hold others' parameters.
[[nodiscard]] Plan on_one_replica(const Plan& plan);

/// Groups in place of ranks.
[[nodiscard]] ParameterHolders groups_of(const ParameterHolders& holders, int places);

}  // namespace rannc::plan
