#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rannc/plan/plan.h"

// The keys of a plan's notes that are shown. Every one may be missing.
namespace rannc::plan {

struct TransferNote {
  int from = 0, to = 0;
  double forward_ns = 0, backward_ns = 0, bytes = 0;
  bool grad = true;  ///< gradients go back
};

struct PartsNote {
  int slowest_stage = 0;
  double compute_ns = 0, bubble_ns = 0, transfer_ns = 0, reduction_ns = 0;
};

struct AlternativeNote {
  std::string kind, schedule, why;
  int64_t micro_batches = 1;
  std::vector<int64_t> replicas;
  double iteration_ns = 0, peak_bytes = 0;
};

/// What runs with a number of micro-batches took before the first step.
struct TriedNote {
  int64_t micro_batches = 1;
  double run_ns = 0;
};

/// The same with plans of several shapes.
struct TriedShapeNote {
  std::vector<int64_t> replicas;
  std::string schedule;
  int64_t interleave = 1, micro_batches = 1;
  double run_ns = 0;
};

struct PlanNotes {
  std::string search;  ///< "complete" or "cut"
  std::optional<double> nodes, blocks, examined, bound_ns, gap;
  std::optional<double> memory_limit_bytes, devices_per_host;
  std::optional<int64_t> hosts;
  std::vector<int> host_of_rank;  ///< empty: as devices_per_host says
  std::optional<PartsNote> parts;
  std::optional<std::vector<TransferNote>> transfers;
  std::vector<AlternativeNote> alternatives;
  std::vector<TriedShapeNote> tried_shapes;
  std::vector<TriedNote> tried_micro_batches;
};

/// Of a stage whose layers groups of ranks compute together.
struct GroupNote {
  double parameter_bytes = 0, cut_bytes = 0;
  double collective_bytes = 0;     ///< that a rank sends for one micro-batch
  double collective_ns = 0;        ///< what that takes
  std::vector<std::string> whole;  ///< what each rank computes or holds whole, and why
  int64_t more_whole = 0;          ///< that `whole` does not name
};

struct StageNotes {
  std::optional<GroupNote> group;
  std::optional<std::string> modules;
  std::optional<double> in_bytes, out_bytes, send_bytes, graph_input_bytes;
};

/// Throw ConfigError with the JSON path ("$.notes.parts", "$.stages[2].notes.modules").
[[nodiscard]] PlanNotes read_notes(const Plan& plan);
[[nodiscard]] StageNotes read_stage_notes(const Plan& plan, size_t stage);

}  // namespace rannc::plan
