#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::plan {

using Rank = int;

enum class Schedule {
  gpipe,        ///< fill-drain: all forwards, then all backwards (GPipe, Huang et al. 2019)
  one_f_one_b,  ///< "1f1b": in flight as many as there are stages behind (PipeDream-flush)
  interleaved,  ///< 1F1B, several stages per group of ranks (Megatron-LM, Narayanan et al. 2021)
};
[[nodiscard]] std::string_view name(Schedule schedule);  ///< "gpipe", "1f1b", "interleaved"
/// Knows "fill_drain", too. Throws ConfigError naming the closest.
[[nodiscard]] Schedule schedule_from_name(std::string_view name);

/// What the planner expects of one rank of a stage. Section 6 of docs/planner-files.md.
struct Prediction {
  int64_t rows = 0;  ///< largest share of a micro-batch
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;  ///< recompute included
  int64_t reduce_ns = 0;
  int64_t param_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t activation_bytes = 0;
  int64_t buffer_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t peak_bytes = 0;
  friend bool operator==(const Prediction&, const Prediction&) = default;
};

/// How many ranks compute one share of a stage together, along each axis of its mesh.
struct Axes {
  int x = 1;
  int y = 1;
  [[nodiscard]] int places() const { return x * y; }
  friend bool operator==(const Axes&, const Axes&) = default;
};

/// Nodes that run together on each group of `ranks`.
struct Stage {
  std::vector<std::string> nodes;  ///< names of row-dependent nodes, in topological order
  /// Replicas that share each micro-batch's rows, in this order; of a replica its places, x
  /// fastest.
  std::vector<Rank> ranks;
  Axes axes = {};
  std::vector<std::string> factors = {};  ///< ids of those that are cut along y: ir::factors()
  bool sequence_parallel = false;  ///< between products each place has a part of the sequence
  bool recompute = false;          ///< keep the stage's inputs only; run forward again in backward
  /// Parts that do so each for itself, of consecutive nodes in the order of `nodes`; none with
  /// `recompute`.
  std::vector<std::vector<std::string>> segments = {};
  bool shares_parameters = false;  ///< each replica keeps a part of the parameters
  /// Those that it shares: see share_parameters(). Not in files.
  std::vector<std::string> shared = {};
  std::optional<Prediction> predicted;
  std::string notes;  ///< a JSON object as text; may be empty
  /// Whether a forward, or a part of it, runs again in the backward.
  [[nodiscard]] bool runs_again() const { return recompute || !segments.empty(); }
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// What a runtime predicts of a whole training step on its own hosts. It knows the optimizer, the
/// cores of a host, and when within a step what is held; any evaluator of planner files computes
/// Plan::iteration_ns and Prediction::peak_bytes. What is not known is empty.
struct StepPrediction {
  std::optional<int64_t> ns = {};
  std::vector<int64_t> idle_ns = {};     ///< [rank] of the step: waits for other ranks
  std::vector<int64_t> bubble_ns = {};   ///< [rank] the same, were messages free
  std::vector<int64_t> peak_bytes = {};  ///< [stage] on the fullest of its ranks
  /// `ns` as it was by the times of operators alone, where runs of the plan have corrected it.
  std::optional<int64_t> from_operators_ns = {};
  friend bool operator==(const StepPrediction&, const StepPrediction&) = default;
};

/// The job that a plan was made for. What is not known is empty.
struct MadeFor {
  std::string fingerprint = {};  ///< ir::fingerprint() of the graph
  std::optional<int64_t> global_batch = {};
  std::optional<int> world = {};  ///< ranks
  friend bool operator==(const MadeFor&, const MadeFor&) = default;
};

/// The planner's answer and the runtime's orders: the file `rannc-plan` of
/// docs/planner-files.md. Written by partition, obeyed by lower() and the executor.
struct Plan {
  bool feasible = true;
  std::string reason;  ///< when not feasible
  Schedule schedule = Schedule::gpipe;
  int interleave = 1;
  int64_t micro_batches = 1;
  int64_t iteration_ns = 0;
  std::vector<Stage> stages;
  MadeFor made_for;
  StepPrediction step;
  /// In which gradients are summed over replicas; at least kLeastBucketBytes. Empty: it follows
  /// from the links. What is added to what first depends on it, and so the last bit of a sum.
  std::optional<int64_t> bucket_bytes;
  /// The replicas of a stage share the state of its optimizer: each steps its shard of each bucket.
  bool shard_optimizer = false;
  /// A JSON object as text, for show alone: how the search went, runners-up; may be empty. The file
  /// has the three fields above among its notes, too.
  std::string notes;
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Throws PlanError unless every row-dependent node of `graph` is in exactly one stage, no value
/// flows to an earlier stage, inseparable nodes share a stage, and stages share all their ranks
/// (interleaved) or none, all of them below `world`. Segments are of consecutive nodes, and
/// inseparable ones share a segment, too. Nodes of the whole batch (Node::whole_batch) allow one
/// micro-batch only.
void verify(const Plan& plan, const ir::Graph& graph, int world);

[[nodiscard]] std::string to_json(const Plan& plan);
/// The same in ASCII with a line for each value, for people who read and compare files.
[[nodiscard]] std::string to_indented_json(const Plan& plan);
/// Throws ConfigError with line and column, or the JSON path. `with_notes`: false for those who
/// ignore notes, whatever they hold, as docs/planner-files.md allows.
[[nodiscard]] Plan plan_from_json(std::string_view json, bool with_notes = true);

/// The same stages for another capture of the same model (eval mode): nodes are matched by name,
/// then by the parameters they use, then by their neighbours. The result verifies against `to`.
[[nodiscard]] Plan map_to(const Plan& plan, const ir::Graph& from, const ir::Graph& to);

/// One row of the table of stages that people read.
struct StageSummary {
  std::string modules;  ///< "embed, layers.0-3" : module paths, ranges folded
  std::string ranks;    ///< "0-3"
  int64_t param_bytes = 0;
  int64_t send_bytes = 0;  ///< leaves forward, per micro-batch; twice when it goes to two stages
  Prediction predicted;
  bool recompute = false;
};
[[nodiscard]] std::vector<StageSummary> summarize(const Plan& plan, const ir::Graph& graph,
                                                  int64_t global_rows);

/// The plan with what only the graph knows (modules, parameter and sent bytes) in the notes of each
/// stage, so that the file alone can be shown.
[[nodiscard]] Plan with_summary(Plan plan, const ir::Graph& graph, int64_t global_rows);

}  // namespace rannc::plan
