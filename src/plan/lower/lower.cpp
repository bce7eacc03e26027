#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "plan/lower/check_shares.h"
#include "plan/lower/compute_order.h"
#include "plan/lower/order.h"
#include "plan/lower/placement.h"
#include "plan/lower/routes.h"
#include "rannc/ir/rewrites.h"
#include "rannc/plan/groups.h"
#include "rannc/plan/program.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// Indices of the transfers that one rank takes part in, at one stage (or the user's side) and
/// micro-batch.
struct Messages {
  std::vector<int> in;
  std::vector<int> out;
};

/// Facts that hold for the whole job.
struct Job {
  bool scalar_outputs = false;
  std::vector<bool> syncs_buffers;            // [stage]
  std::vector<std::vector<int>> stages_on;    // [rank], ascending
  std::vector<std::vector<int>> sent_by;      // [rank], transfers
  std::vector<std::vector<int>> received_by;  // [rank]
  std::vector<std::vector<int>> reduced_on;   // [rank], reductions
};

Job describe(const Program& program, const ir::Graph& graph, const Placement& placement) {
  Job job;
  job.scalar_outputs = std::ranges::any_of(
      program.outputs, [&](ir::ValueId output) { return is_scalar(graph[output]); });

  job.syncs_buffers.assign(placement.nodes.size(), false);
  for (const ir::RunningStatistic& statistic : ir::running_statistics(graph)) {
    const int stage = placement.stage_of[statistic.node.index];
    if (stage == Placement::kCloned || program.mesh(stage).replicas() < 2) continue;
    job.syncs_buffers[stage] = true;
  }

  const size_t ranks = program.actions.size();
  job.stages_on.resize(ranks);
  for (int stage = 0; stage < program.stages(); ++stage) {
    for (Rank rank : program.stage_ranks[stage]) job.stages_on[rank].push_back(stage);
  }
  job.sent_by.resize(ranks);
  job.received_by.resize(ranks);
  for (int index = 0; index < static_cast<int>(program.transfers.size()); ++index) {
    job.sent_by[program.transfers[index].from].push_back(index);
    job.received_by[program.transfers[index].to].push_back(index);
  }
  job.reduced_on.resize(ranks);
  for (int index = 0; index < static_cast<int>(program.reductions.size()); ++index) {
    for (Rank rank : program.reductions[index].ranks) job.reduced_on[rank].push_back(index);
  }
  return job;
}

/// Writes the orders of one rank.
class Orders {
 public:
  Orders(const Program& program, const Job& job, Rank rank)
      : program_(program), job_(job), rank_(rank) {
    for (int index : job.sent_by[rank]) {
      const Transfer& transfer = program.transfers[index];
      messages_[{transfer.from_stage, transfer.micro_batch}].out.push_back(index);
    }
    for (int index : job.received_by[rank]) {
      const Transfer& transfer = program.transfers[index];
      messages_[{transfer.to_stage, transfer.micro_batch}].in.push_back(index);
    }
  }

  std::vector<Action> write(const std::vector<Compute>& order) {
    // Sends never block, so all inputs leave at once; a stage takes them when it needs them.
    move_user(Direction::forward, /*send=*/true);
    const bool returns_before_backward =
        program_.training && !backward_comes_first(program_.schedule);
    const auto first_backward = std::ranges::find(order, false, &Compute::forward);

    for (auto compute = order.begin(); compute != first_backward; ++compute) forward(*compute);
    if (returns_before_backward) {
      join_results();
      actions_.push_back({.kind = ActionKind::return_outputs, .stage = kUser});
      move_user(Direction::backward, /*send=*/true);
    }
    for (auto compute = first_backward; compute != order.end(); ++compute) {
      compute->forward ? forward(*compute) : backward(*compute);
    }
    if (program_.training) {
      for (int index : job_.reduced_on[rank_]) {
        actions_.push_back({.kind = ActionKind::reduce_gradients, .stage = kUser, .index = index});
      }
    }
    if (!returns_before_backward) join_results();
    // Last, because nobody but the user waits for the gradients of inputs.
    move_user(Direction::backward, /*send=*/false);
    return std::move(actions_);
  }

 private:
  void move(int index, Direction direction, bool send) {
    const Transfer& transfer = program_.transfers[index];
    if (direction == Direction::backward && !transfer.grad) return;
    const bool at_source = send == (direction == Direction::forward);
    actions_.push_back({.kind = send ? ActionKind::send : ActionKind::receive,
                        .stage = at_source ? transfer.from_stage : transfer.to_stage,
                        .micro_batch = transfer.micro_batch,
                        .index = index,
                        .direction = direction});
  }

  /// Inputs and their gradients, or outputs and theirs, of all micro-batches.
  void move_user(Direction direction, bool send) {
    for (const auto& [where, messages] : messages_) {
      if (where.first != kUser) continue;
      const bool inputs = send == (direction == Direction::forward);
      for (int index : inputs ? messages.out : messages.in) move(index, direction, send);
    }
  }

  void compute(ActionKind kind, const Compute& what) {
    actions_.push_back({.kind = kind, .stage = what.stage, .micro_batch = what.micro_batch});
  }

  void forward(const Compute& what) {
    const Messages& messages = messages_[{what.stage, what.micro_batch}];
    for (int index : messages.in) move(index, Direction::forward, /*send=*/false);
    compute(ActionKind::forward, what);
    for (int index : messages.out) move(index, Direction::forward, /*send=*/true);
    if (!program_.training) compute(ActionKind::release, what);
  }

  void backward(const Compute& what) {
    const Messages& messages = messages_[{what.stage, what.micro_batch}];
    for (int index : messages.out) move(index, Direction::backward, /*send=*/false);
    compute(ActionKind::backward, what);
    for (int index : messages.in) move(index, Direction::backward, /*send=*/true);
    compute(ActionKind::release, what);
  }

  /// What follows the last micro-batch: results of all of them become one.
  void join_results() {
    for (int stage : job_.stages_on[rank_]) {
      if (!job_.syncs_buffers[stage]) continue;
      actions_.push_back({.kind = ActionKind::sync_buffers, .stage = stage});
    }
    if (job_.scalar_outputs) {
      actions_.push_back({.kind = ActionKind::reduce_outputs, .stage = kUser});
    }
    move_user(Direction::forward, /*send=*/false);
  }

  const Program& program_;
  const Job& job_;
  Rank rank_;
  std::map<std::pair<int, int>, Messages> messages_;  // by stage and micro-batch
  std::vector<Action> actions_;
};

}  // namespace

Program lower(const Plan& plan, const ir::Graph& graph, const std::vector<int64_t>& local_rows,
              bool training, Outputs outputs, const ParameterHolders& holders) {
  if (const int size = places(plan); size > 1) {
    return lower(plane_of(plan), graph, rows_of_groups(local_rows, size), training, outputs,
                 groups_of(holders, size));
  }
  Program program;
  program.schedule = plan.schedule;
  program.training = training;
  program.outputs = returned_outputs(plan.schedule, graph, training, outputs,
                                     static_cast<int>(local_rows.size()));
  const Placement placement = place(plan, graph);
  program.split = split_batch(local_rows, plan.micro_batches);
  for (const Stage& stage : plan.stages) {
    program.stage_ranks.push_back(stage.ranks);
    program.shares.push_back(shares(program.split, mesh_of(stage)));
  }
  check_statistics(program, graph, placement);
  program.transfers = routes(graph, crossings(plan, graph, program.outputs), program);
  if (training) program.reductions = reductions(graph, placement, plan, holders);
  program.actions.resize(local_rows.size());

  const Job job = describe(program, graph, placement);
  std::map<int, std::vector<Compute>> order_of;  // by group
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    std::vector<Compute> order;
    if (!job.stages_on[rank].empty()) {
      const int group = job.stages_on[rank].front();
      auto [found, is_new] = order_of.try_emplace(group);
      if (is_new) {
        found->second =
            compute_order(plan.schedule, program.stages(), plan.interleave,
                          static_cast<int>(program.split.micro_batches), group, training);
      }
      order = found->second;
    }
    program.actions[rank] = Orders(program, job, rank).write(order);
  }
  put_in_order(program, plan, graph, placement);
  return program;
}

}  // namespace rannc::plan
