#include "runtime/call/pipeline_call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "rannc/ir/cut.h"
#include "rannc/plan/ahead.h"
#include "rannc/plan/trace.h"
#include "rannc/util/error.h"
#include "rannc/util/log.h"
#include "runtime/call/tags.h"
#include "runtime/stage/random_state.h"
#include "runtime/stage/show_values.h"

namespace rannc::runtime {

using plan::ActionKind;

PipelineCall::PipelineCall(std::shared_ptr<const RankPart> part,
                           std::shared_ptr<const Orders> orders, int64_t number,
                           Arguments arguments, std::shared_ptr<History> history,
                           std::shared_ptr<KeptGradients> kept)
    : part_(std::move(part)),
      orders_(std::move(orders)),
      number_(number),
      with_backward_(arguments.with_backward),
      recorder_(with_backward_ ? std::move(history) : nullptr, number, actions().size(),
                part_->device),
      gathers_(part_->gathers_of(arguments.parameters)),
      gradients_(
          *part_, *orders_, number, arguments.parameters, gathers_, with_backward_,
          arguments.no_sync, std::move(kept),
          part_->comm->is_in_order() ? [this] { issues_->go_on(); } : std::function<void()>()),
      boundary_(*part_, *orders_, std::move(arguments.inputs), arguments.loss_seed),
      batches_(*part_, *orders_),
      buffers_(std::move(arguments.buffers)),
      found_buffers_(buffers_.size()),
      found_parameters_(arguments.parameters.size()) {
  if (part_->draw_steps) draw_steps_ = *part_->draw_steps;
}

PipelineCall::~PipelineCall() {
  static std::atomic_flag warned = ATOMIC_FLAG_INIT;
  if (!unused_ || part_->rank != 0 || warned.test_and_set()) return;
  log::warn("runtime",
            c10::str("a loss was never used: under the schedule '", plan::name(program().schedule),
                     "' its backward has run with the forward, for nothing. Call the model under "
                     "torch.no_grad(), or after eval(), where no gradient is wanted"));
}

void PipelineCall::forward() {
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard device = current_device();
  std::optional<RankRandom> random;
  if (part_->from_generators && part_->comm->size() > 1) random.emplace(part_->device, part_->rank);
  const bool backward_runs = with_backward_ && plan::backward_comes_first(program().schedule);
  if (backward_runs) boundary_.seed_loss();
  boundary_.run_prelude(buffers_);
  run(0, orders_->return_outputs);
  outputs_ = boundary_.take_outputs();
  finished_ = !with_backward_;
  unused_ = backward_runs;
}

std::vector<at::Tensor> PipelineCall::backward(std::vector<at::Tensor> output_grads,
                                               bool keep_graph, BackwardOf of) {
  if (!with_backward_) throw_no_backward();
  if (finished_) throw_given_away();
  RANNC_CHECK(output_grads.size() == part_->graph.outputs.size(), c10::str(output_grads.size()));
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard device = current_device();
  std::vector<at::Tensor> gradients = plan::backward_comes_first(program().schedule)
                                          ? scale_gradients(output_grads, keep_graph)
                                          : run_backward(std::move(output_grads), keep_graph, of);
  gradients_.finish(gradients, recorder_, of);
  if (finished_) forget();
  return gradients;
}

/// Autograd may call in any thread.
c10::OptionalDeviceGuard PipelineCall::current_device() const {
  return part_->device.is_cpu() ? c10::OptionalDeviceGuard()
                                : c10::OptionalDeviceGuard(part_->device);
}

bool PipelineCall::communicates() const {
  return !plan::backward_comes_first(program().schedule) || gradients_.sums_at_end();
}

/// The gradients are there: they are multiplied by the one of the loss that comes in.
std::vector<at::Tensor> PipelineCall::scale_gradients(const std::vector<at::Tensor>& output_grads,
                                                      bool keep_graph) {
  const at::Tensor factor = boundary_.gradient_of_loss(output_grads);
  unused_ = false;
  outputs_.clear();
  finished_ = !keep_graph;
  if (!keep_graph) {
    std::vector<at::Tensor> gradients = take_gradients();
    if (!factor.defined()) return std::vector<at::Tensor>(gradients.size());
    // A device is not waited for: multiplying by 1 changes nothing.
    if (factor.is_cpu() && factor.item<double>() == 1) return gradients;
    std::vector<at::Tensor> flowing;
    std::ranges::copy_if(gradients, std::back_inserter(flowing), &at::Tensor::defined);
    if (!flowing.empty()) at::_foreach_mul_(flowing, factor);  // few kernels for all of them
    return gradients;
  }
  std::vector<at::Tensor> gradients = gradients_.show();
  boundary_.show_gradients(gradients);
  for (at::Tensor& gradient : gradients) {
    const bool flows = factor.defined() && gradient.defined();
    gradient = flows ? gradient.mul(factor).to(gradient.scalar_type()) : at::Tensor();
  }
  return gradients;
}

/// Of which values there is a gradient, where some outputs have none.
void PipelineCall::find_flows(int64_t outputs) {
  const ir::Graph& graph = part_->graph;
  std::vector<ir::ValueId> given;
  for (size_t index = 0; index < graph.outputs.size(); ++index) {
    if (index >= BackwardOf::kMostOutputs || ((outputs >> index) & 1) != 0) {
      given.push_back(graph.outputs[index]);
    }
  }
  flows_.clear();
  if (given.size() < graph.outputs.size()) flows_ = ir::leading_to(graph, given);
}

/// The Program's actions after return_outputs.
std::vector<at::Tensor> PipelineCall::run_backward(std::vector<at::Tensor> output_grads,
                                                   bool keep_graph, const BackwardOf& of) {
  if (keeps_graph_) prepare_backward();
  find_flows(of.outputs);
  keeps_graph_ = keep_graph;
  finished_ = !keep_graph;
  outputs_.clear();
  boundary_.seed_outputs(output_grads);
  output_grads.clear();
  gradients_.take_kept(of);
  try {
    run(orders_->return_outputs + 1, actions().size());
  } catch (...) {
    gradients_.lose_kept();
    throw;
  }
  return take_gradients();
}

/// What an earlier backward of this call has used up.
void PipelineCall::prepare_backward() {
  batches_.expect_gradients(*part_);
  boundary_.reset_gradients();
  gradients_.prepare_sums();
  for (const auto& gathers : gathers_) {
    if (gathers) gathers->reset();
  }
}

/// [parameter], then [argument].
std::vector<at::Tensor> PipelineCall::take_gradients() {
  std::vector<at::Tensor> gradients = gradients_.take();
  boundary_.take_gradients(gradients);
  return gradients;
}

/// Autograd keeps the call as long as the user keeps the loss.
void PipelineCall::forget() {
  gradients_.forget();
  boundary_.forget();
  batches_.clear();
  buffers_.clear();
}

void PipelineCall::throw_no_backward() const {
  throw Error(c10::str(
      "backward was called on a forward pass that ran without gradients: under no_grad(), or, "
      "under the schedule '",
      plan::name(program().schedule),
      "', after eval().\n"
      "  Call train() before the forward pass, or use Config(schedule='gpipe')."));
}

void PipelineCall::throw_given_away() const {
  throw Error(c10::str(
      "backward was called twice on one forward pass, ",
      plan::backward_comes_first(program().schedule) ? "whose gradients were given away"
                                                     : "whose intermediate values were freed",
      " by the first.\n  Call the first with retain_graph=True, or call the model again in "
      "between."));
}

const std::vector<plan::Action>& PipelineCall::actions() const {
  return program().actions[static_cast<size_t>(part_->rank)];
}

void PipelineCall::run(size_t begin, size_t end) {
  RowMoves moves(*part_, *orders_, number_, batches_, boundary_, flows_);
  per_call_.resize(part_->stages.size());
  const auto forget_shared = c10::make_scope_exit([this] { per_call_.clear(); });
  try {
    if (part_->comm->is_in_order()) {
      walk_in_order(begin, end, moves);
    } else {
      walk(begin, end, moves);
    }
  } catch (const std::exception& error) {
    issues_.reset();
    // Others may have sent what this rank will not take, or have taken no message of its own. With
    // a later call of the same tags they would get each other's numbers; where there are no tags,
    // also if this rank has issued nothing.
    const bool in_order = part_->comm->is_in_order() && part_->comm->size() > 1;
    if (in_order || gradients_.summing() || moves.used()) {
      part_->comm->leave_messages(
          c10::str("a call failed on rank ", part_->rank, ": ", error.what()));
    }
    throw;
  }
}

void PipelineCall::walk(size_t begin, size_t end, RowMoves& moves) {
  const std::span<const plan::Action> phase =
      std::span<const plan::Action>(actions()).subspan(begin, end - begin);
  plan::PostedAhead posted(phase);
  recorder_.start();
  for (size_t at = 0; at < phase.size(); ++at) {
    posted.before(at, [&](const plan::Action& receive) { moves.post(receive); });
    const bool later =
        phase[at].kind == ActionKind::reduce_gradients && !gradients_.sums_in_program();
    if (later) continue;
    if (plan::is_computation(phase[at])) moves.drop_sent();
    {
      at::RecordFunction range(at::RecordScope::USER_SCOPE);  // for torch.profiler, if it looks
      if (range.isActive()) range.before("rannc: " + plan::in_words(program(), phase[at]));
      act(phase[at], moves);
    }
    recorder_.end(static_cast<int>(begin + at), phase[at].kind);
  }
  moves.wait_sends();
  recorder_.end(/*index=*/-1, ActionKind::send);
}

/// Sends and receives are issued where the Program says, and so are sums, which are waited for at
/// the end: nothing in a phase needs them before.
void PipelineCall::walk_in_order(size_t begin, size_t end, RowMoves& moves) {
  const auto action_of = [](const plan::Communication& one) {
    return plan::Action{.index = one.index, .direction = one.direction};
  };
  issues_ = std::make_unique<Issues>(
      program(), part_->rank, begin, end,
      Issues::Ways{
          .issue = [&](const plan::Communication& one) { issue(one, moves); },
          .is_complete =
              [this](const plan::Communication& one) {
                return !gradients_.sums_in_program() || gradients_.is_complete(one);
              },
          .reserve = [&](const plan::Communication& one) { moves.reserve(action_of(one)); }});
  std::vector<size_t> sums, receives;  // for later
  recorder_.start();
  for (size_t at = begin; at < end; ++at) {
    const plan::Action& action = actions()[at];
    issues_->before(at);
    switch (action.kind) {
      case ActionKind::send:
        moves.prepare(action);
        break;
      case ActionKind::receive:
        // What the user gets, or what another adds to, may be issued after others of its kind.
        if (moves.is_issued(action)) {
          moves.receive(action);
        } else {
          receives.push_back(at);
        }
        break;
      case ActionKind::sync_buffers:
      case ActionKind::reduce_outputs:
      case ActionKind::reduce_gradients:
        sums.push_back(at);
        continue;
      case ActionKind::forward:
      case ActionKind::backward:
        for (size_t receive : std::exchange(receives, {})) moves.receive(actions()[receive]);
        moves.drop_sent();
        issues_->enter(at);
        act(action, moves);
        issues_->leave();
        break;
      case ActionKind::release:
      case ActionKind::return_outputs:
        act(action, moves);
    }
    recorder_.end(static_cast<int>(at), action.kind);
  }
  issues_->before(end);
  for (size_t receive : receives) moves.receive(actions()[receive]);
  for (size_t at : sums) {
    const plan::Action& action = actions()[at];
    if (action.kind == ActionKind::sync_buffers) {
      if (const auto started = buffer_sums_.extract(action.stage)) {
        finish_buffers(action.stage, started.mapped());
      }
    } else if (action.kind == ActionKind::reduce_outputs) {
      boundary_.finish_sum();
    } else if (gradients_.sums_in_program()) {
      gradients_.reduce(static_cast<size_t>(action.index));
    }
    recorder_.end(static_cast<int>(at), action.kind);
  }
  moves.wait_sends();
  recorder_.end(/*index=*/-1, ActionKind::send);
  issues_.reset();
}

void PipelineCall::issue(const plan::Communication& communication, RowMoves& moves) {
  switch (communication.kind) {
    case plan::CommunicationKind::transfer:
      return moves.issue(communication.index, communication.direction);
    case plan::CommunicationKind::statistics: {
      // This rank has not come to them: it has no rows, or no gradient flows there.
      const auto node = ir::NodeId{static_cast<uint32_t>(communication.part)};
      return join_statistics(channels_of(part_->graph, node),
                             communication.direction == plan::Direction::forward, part_->device,
                             *part_->comm, *part_->stream, replicas_of(communication.index),
                             communication.index);
    }
    case plan::CommunicationKind::buffers:
      if (!part_->local(communication.index).statistics.shared()) return;
      buffer_sums_.insert_or_assign(communication.index, start_buffers(communication.index));
      return;
    case plan::CommunicationKind::outputs:
      return boundary_.start_sum();
    case plan::CommunicationKind::bucket:
      if (gradients_.sums_in_program()) gradients_.issue(communication);
      return;
  }
}

void PipelineCall::act(const plan::Action& action, RowMoves& moves) {
  switch (action.kind) {
    case ActionKind::forward:
      return run_forward(action.stage, action.micro_batch);
    case ActionKind::backward:
      return run_backward(action.stage, action.micro_batch);
    case ActionKind::send:
      return moves.send(action);
    case ActionKind::receive:
      return moves.receive(action);
    case ActionKind::sync_buffers:
      if (part_->local(action.stage).statistics.shared()) {
        finish_buffers(action.stage, start_buffers(action.stage));
      }
      return;
    case ActionKind::reduce_outputs:
      return boundary_.sum_scalars();
    case ActionKind::reduce_gradients:
      return gradients_.reduce(static_cast<size_t>(action.index));
    case ActionKind::release:
      return batches_.at(action.stage, action.micro_batch).release(/*keep_pass=*/keeps_graph_);
    case ActionKind::return_outputs:
      break;
  }
  RANNC_CHECK(false, "return_outputs in the middle of a phase");
}

std::vector<at::Tensor> PipelineCall::state_of(const LocalStage& local) const {
  std::vector<at::Tensor> state;
  for (const StateSource& source : local.state) {
    state.push_back((source.buffer ? buffers_ : gradients_.aliases())[source.index]);
  }
  return state;
}

/// What the stage's micro-batches share in this phase; `last`: the run is the last one that reads
/// it. Null where there is one micro-batch.
PerCall* PipelineCall::per_call(int stage, bool last) {
  if (program().split.micro_rows.size() == 1) return nullptr;
  // Stages that recompute as a whole are held one at a time, and plans count on it.
  for (size_t other = 0; other < per_call_.size(); ++other) {
    if (static_cast<int>(other) != stage && part_->stages[other].recompute) per_call_[other] = {};
  }
  PerCall& found = per_call_[static_cast<size_t>(stage)];
  found.gradients = with_backward_;
  found.last = last;
  return &found;
}

/// Of all micro-batches and stages of this rank only the first one writes to the buffers and
/// parameters themselves. The others find what it has found, and so compute the same.
void PipelineCall::write_once(const LocalStage& local, std::vector<at::Tensor>& state) {
  for (size_t index : local.row_free) {
    const StateSource& source = local.state[index];
    at::Tensor& found = (source.buffer ? found_buffers_ : found_parameters_)[source.index];
    if (found.defined()) {
      state[index] = copy_of_state(found);
    } else {
      found = copy_of_state(state[index]);
    }
  }
}

std::vector<at::Tensor> PipelineCall::arguments_without_rows(const Stage& stage) const {
  std::vector<at::Tensor> found(stage.inputs().size());
  for (size_t index = 0; index < found.size(); ++index) {
    if (stage.without_rows()[index]) found[index] = boundary_.input(stage.inputs()[index]);
  }
  return found;
}

std::vector<at::Tensor> PipelineCall::take_inputs(const LocalStage& local, MicroBatch& batch) {
  std::vector<at::Tensor> inputs;
  for (size_t index = 0; index < local.stage->inputs().size(); ++index) {
    const ir::ValueId id = local.stage->inputs()[index];
    at::Tensor input = std::move(batch.inputs[index].tensor);
    // An argument without rows is the same on every rank.
    if (!input.defined()) input = boundary_.input(id);
    inputs.push_back(std::move(input));
  }
  batch.inputs.clear();
  return inputs;
}

std::shared_ptr<const DrawKey> PipelineCall::draw_key(int stage, int micro_batch) const {
  if (!part_->draw_steps) return nullptr;
  const auto& shares = program().shares[static_cast<size_t>(stage)];
  const plan::RowRange share =
      shares[static_cast<size_t>(part_->local(stage).replica)][static_cast<size_t>(micro_batch)];
  return std::make_shared<const DrawKey>(
      DrawKey{draw_steps_, plan::samples(program().split, micro_batch, share)});
}

std::vector<plan::Rank> PipelineCall::replicas_of(int stage) const {
  const plan::StageMesh mesh = program().mesh(stage);
  const std::optional<int> place = mesh.place_of(part_->rank);
  RANNC_CHECK(place, "rank " + std::to_string(part_->rank) + " does not run stage " +
                         std::to_string(stage));
  std::vector<plan::Rank> ranks = mesh.ranks_of_place(*place);
  std::ranges::sort(ranks);
  return ranks;
}

/// With the other replicas that have rows; null when there are none, or the stage does not need it.
/// Where communication has an order, a rank that is alone with its rows meets the others all the
/// same.
std::shared_ptr<WholeBatch> PipelineCall::whole_batch(int stage, int micro_batch) {
  const Stage& local = *part_->local(stage).stage;
  if (!local.needs_whole_batch()) return nullptr;
  std::vector<plan::Rank> ranks;
  const plan::StageMesh mesh = program().mesh(stage);
  const int place = *mesh.place_of(part_->rank);
  const auto& shares = program().shares[static_cast<size_t>(stage)];
  for (int replica = 0; replica < mesh.replicas(); ++replica) {
    const plan::RowRange& share =
        shares[static_cast<size_t>(replica)][static_cast<size_t>(micro_batch)];
    if (share.size() > 0) ranks.push_back(mesh.rank(replica, place));
  }
  std::vector<plan::Rank> all = replicas_of(stage);
  if ((issues_ ? all : ranks).size() < 2) return nullptr;
  std::ranges::sort(ranks);
  // After the tags of the transfers. Stages on the same ranks may share them: they run in the same
  // order everywhere, and messages of equal tags arrive in the order sent.
  const auto transfers = static_cast<int64_t>(program().transfers.size());
  auto whole = std::make_shared<WholeBatch>(part_->comm, part_->stream, std::move(ranks),
                                            first_tag_of(number_) + 2 * transfers, stage);
  if (issues_) {
    whole->all_replicas = std::move(all);
    whole->reach_statistics = [this, &local](uint32_t node) {
      issues_->reach_statistics(static_cast<int>(local.whole_node(node).index));
    };
  }
  return whole;
}

void PipelineCall::run_forward(int stage, int micro_batch) {
  const LocalStage& local = part_->local(stage);
  MicroBatch& batch = batches_.at(stage, micro_batch);
  std::vector<at::Tensor> state = state_of(local);
  const std::shared_ptr<const DrawKey> key = draw_key(stage, micro_batch);
  write_once(local, state);
  ParameterGathers* const gathers = gathers_[static_cast<size_t>(stage)].get();
  if (gathers) gathers->begin(/*backward=*/false);
  const bool last = micro_batch == static_cast<int>(program().split.micro_rows.size()) - 1;
  const bool runs_again = with_backward_ && local.stage->runs_again();
  if (batch.rows == 0) {
    if (last && !runs_again) per_call_[static_cast<size_t>(stage)] = {};
    local.stage->skip(arguments_without_rows(*local.stage), state, key.get(), gathers);
    if (gathers) gathers->end();
    return;
  }

  if (local.statistics.lends()) batch.statistics = local.statistics.lend(state);
  std::vector<at::Tensor> inputs = take_inputs(local, batch);
  if (part_->show_values) {
    show_values(part_->graph, local.stage->inputs(), inputs,
                c10::str("into stage ", stage, ", micro-batch ", micro_batch));
  }
  const std::shared_ptr<WholeBatch> whole = whole_batch(stage, micro_batch);
  PerCall* shared = per_call(stage, last && !runs_again);  // a second run reads it once more
  batch.outputs = with_backward_
                      ? local.stage->forward(std::move(inputs), local.input_requires_grad, state,
                                             batch.rows, batch.pass, key, shared, whole, gathers)
                      : local.stage->forward(std::move(inputs), state, batch.rows, key.get(),
                                             shared, whole, gathers);
  if (gathers) gathers->end();
  if (part_->show_values) {
    show_values(part_->graph, local.stage->outputs(), batch.outputs,
                c10::str("out of stage ", stage, ", micro-batch ", micro_batch));
  }
  boundary_.add_scalars(local, batch);
  if (batch.unsent == 0) batch.outputs.clear();
  if (local.statistics.lends() && !local.statistics.shared() && last) {
    local.statistics.finish(take_updates(stage), state_of(local));
  }
}

void PipelineCall::run_backward(int stage, int micro_batch) {
  const LocalStage& local = part_->local(stage);
  MicroBatch& batch = batches_.at(stage, micro_batch);
  const bool last = micro_batch == orders_->last_backward[static_cast<size_t>(stage)];
  if (last) gradients_.begin_last_backward(stage);
  ParameterGathers* const gathers = gathers_[static_cast<size_t>(stage)].get();
  if (gathers) gathers->begin(/*backward=*/true);
  if (batch.rows > 0) {
    run_backward(local, batch, local.stage->runs_again() ? per_call(stage, last) : nullptr,
                 gathers);
  }
  if (gathers) gathers->end();
  if (gathers && last) gathers->agree();
  if (last) per_call_[static_cast<size_t>(stage)] = {};
  if (last) gradients_.end_last_backward(stage);
}

void PipelineCall::run_backward(const LocalStage& local, MicroBatch& batch, PerCall* per_call,
                                ParameterGathers* gathers) {
  boundary_.add_scalar_gradients(local, batch);
  std::vector<at::Tensor> grads;
  for (Assembly& grad : batch.output_grads) grads.push_back(std::move(grad.tensor));
  batch.output_grads.clear();
  StagePass pass = keeps_graph_ ? batch.pass : std::exchange(batch.pass, {});
  batch.input_grads = local.stage->backward(std::move(pass), std::move(grads), state_of(local),
                                            per_call, gathers, keeps_graph_);
}

RunningStatistics::Updates PipelineCall::take_updates(int stage) {
  const std::vector<int64_t>& micro_rows = program().split.micro_rows;
  const auto all =
      static_cast<double>(std::accumulate(micro_rows.begin(), micro_rows.end(), int64_t{0}));
  RunningStatistics::Updates updates;
  for (size_t k = 0; k < micro_rows.size(); ++k) {
    MicroBatch& batch = batches_.of(stage)[k];
    const auto rows = static_cast<double>(micro_rows[k]);
    updates.copies.push_back(std::exchange(batch.statistics, {}));
    updates.weights.push_back(static_cast<double>(batch.rows) / rows);
    updates.parts.push_back(rows / all);
  }
  return updates;
}

RunningStatistics::Sums PipelineCall::start_buffers(int stage) {
  const LocalStage& local = part_->local(stage);
  return local.statistics.start(take_updates(stage), state_of(local), *part_->comm, *part_->stream,
                                replicas_of(stage),
                                {.what = "running statistics", .stage = stage, .micro_batch = -1});
}

void PipelineCall::finish_buffers(int stage, const RunningStatistics::Sums& sums) {
  const LocalStage& local = part_->local(stage);
  local.statistics.finish(sums, state_of(local), *part_->stream);
}

}  // namespace rannc::runtime
