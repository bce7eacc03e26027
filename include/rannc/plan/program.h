#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/mesh.h"
#include "rannc/plan/order.h"
#include "rannc/plan/outputs.h"
#include "rannc/plan/plan.h"
#include "rannc/plan/rows.h"

namespace rannc::plan {

/// Stage number of the user's side of a transfer: the local batch and the local outputs.
inline constexpr int kUser = -1;

/// One message of the forward pass; its gradient, if any, takes the same way back.
struct Transfer {
  ir::ValueId value;   ///< in the whole graph
  int from_stage = 0;  ///< kUser: the user's input
  int to_stage = 0;    ///< kUser: the user's output
  int micro_batch = 0;
  Rank from = 0;
  Rank to = 0;  ///< may equal `from`: a copy inside the rank
  /// Rows within the sender's share (or local batch) and within the receiver's. Equal sizes.
  /// Values that are not `apart` travel whole: see `weight`.
  RowRange source;
  RowRange target;
  /// When `whole`, the full shares of both sides; an output that is the same for all rows
  /// (kind none) travels with micro-batch 0 only.
  bool whole = false;
  /// Factor of this message in the receiver's sum when `whole`: a mean takes the overlap over the
  /// receiver's rows, a sum the overlap over the sender's rows.
  double weight = 1;
  bool grad = false;  ///< a gradient comes back
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Gradients that are summed over ranks: parameters with the same set of ranks together.
struct Reduction {
  std::vector<ir::ValueId> parameters;
  std::vector<Rank> ranks;  ///< ascending, at least two: of the stages, and other holders
  std::vector<int> stages;  ///< ascending; several for tied parameters
  friend bool operator==(const Reduction&, const Reduction&) = default;
};

enum class ActionKind {
  forward,         ///< stage, micro_batch
  backward,        ///< stage, micro_batch
  send,            ///< transfer, direction; starts it and goes on
  receive,         ///< transfer, direction; waits until it has arrived
  sync_buffers,    ///< stage: running statistics of the replicas become one; without training, too
  reduce_outputs,  ///< scalar outputs of all micro-batches and replicas become one, on all ranks
  return_outputs,  ///< training by fill-drain only: the user's code runs here, and comes back with
                   ///< gradients. Other Programs return at their end.
  reduce_gradients,  ///< reduction
  release,           ///< stage, micro_batch: nothing of it is needed any more
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;  ///< of this rank; kUser where the action belongs to no stage
  int micro_batch = 0;
  int index = -1;  ///< of the transfer or of the reduction
  Direction direction = Direction::forward;
  friend bool operator==(const Action&, const Action&) = default;
};

/// For each rank the ordered list of what it does in one iteration. The simulator and the executor
/// run the same Program.
struct Program {
  Schedule schedule = Schedule::gpipe;
  bool training = true;  ///< false: no backward, no reduction
  BatchSplit split;
  std::vector<ir::ValueId> outputs;  ///< that the user gets, ascending; see returned_outputs()
  std::vector<std::vector<Rank>> stage_ranks;              ///< [stage]
  std::vector<std::vector<std::vector<RowRange>>> shares;  ///< [stage][replica][k]
  std::vector<Transfer> transfers;
  std::vector<Reduction> reductions;
  std::vector<std::vector<Bucket>> buckets;  ///< [reduction], in the order of their sums
  std::vector<std::vector<Action>> actions;  ///< [rank]
  /// Every communication of the call, first what precedes return_outputs. Where messages have no
  /// tags and block, ranks issue them in this order, and the call ends all the same.
  std::vector<Communication> order;
  std::vector<std::vector<Issue>> issues;  ///< [rank], in the order in which they are made

  [[nodiscard]] int stages() const { return static_cast<int>(stage_ranks.size()); }
  [[nodiscard]] StageMesh mesh(int stage) const {
    return mesh_of(stage_ranks[static_cast<size_t>(stage)]);
  }
  [[nodiscard]] int ranks() const { return static_cast<int>(actions.size()); }
  friend bool operator==(const Program&, const Program&) = default;
};

/// By parameter: ranks that hold it and want its gradient, whether or not their stages use it.
using ParameterHolders = std::map<std::string, std::vector<Rank>>;

/// Turns a plan into orders for each rank. Requires verify(plan, graph, local_rows.size()).
/// Row-independent nodes are not in the Program: every stage runs its clones. Gradients are summed
/// in buckets of Plan::bucket_bytes, else kBucketBytes. The order of communication follows from the
/// stages' predictions, without them from 1 for a forward and 2 for a backward. Throws PlanError as
/// returned_outputs() does, and when the batch is too small: no row at all, or a share that batch
/// normalisation cannot take.
[[nodiscard]] Program lower(const Plan& plan, const ir::Graph& graph,
                            const std::vector<int64_t>& local_rows, bool training,
                            Outputs outputs = Outputs::loss, const ParameterHolders& holders = {});

/// A value that goes from one stage to a later one, with kUser for the user's side. Unbatched
/// inputs stay where they are, so they are in no crossing; every output that the user gets is in
/// one, scalars too.
struct Crossing {
  ir::ValueId value;
  int from_stage = 0;  ///< kUser: a batched input
  int to_stage = 0;    ///< kUser: an output
  friend bool operator==(const Crossing&, const Crossing&) = default;
};
/// Ordered by sending stage, receiving stage (the user last) and value. Requires verify(plan).
/// Outputs that no stage computes (inputs, parameters, constants and what follows from them alone)
/// come from the last stage.
[[nodiscard]] std::vector<Crossing> crossings(const Plan& plan, const ir::Graph& graph,
                                              const std::vector<ir::ValueId>& outputs);

/// For each stage the values that leave it, to other stages or, among `outputs`, to the user,
/// ascending, each once: what ir::extract() must keep.
[[nodiscard]] std::vector<std::vector<ir::ValueId>> stage_outputs(
    const Plan& plan, const ir::Graph& graph, const std::vector<ir::ValueId>& outputs);

/// Throws PlanError unless every receive has its send, every row of every boundary value arrives
/// exactly once and in order, backwards mirror forwards, reductions are in one order on all ranks,
/// and the Program ends where a communication needs all its ranks at the same time and blocks its
/// stream (one for forward, one for backward, one for reductions), or blocks everything,
/// computations included; also up to return_outputs alone, and without its sums of gradients.
/// Shares no code with lower().
void verify(const Program& program, const ir::Graph& graph);

[[nodiscard]] std::string to_json(const Program& program);

/// The order of communication for people: a line for each, and one for each rank with what it
/// issues, by place in the order, between its forwards and backwards: "0 1 F0 3 B0(4) 5".
[[nodiscard]] std::string show_order(const Program& program);

}  // namespace rannc::plan
