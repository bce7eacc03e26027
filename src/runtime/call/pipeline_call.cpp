#include "runtime/call/pipeline_call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <utility>

#include "rannc/ops/add_up_gradients.h"
#include "rannc/ops/dtype.h"
#include "rannc/plan/ahead.h"
#include "rannc/util/error.h"
#include "rannc/util/log.h"
#include "runtime/call/tags.h"
#include "runtime/device_memory.h"
#include "runtime/stage/random_state.h"

namespace rannc::runtime {
namespace {

using plan::ActionKind;
using plan::Direction;
using plan::kUser;

int64_t slot_of(const plan::Action& action) {
  return 2 * static_cast<int64_t>(action.index) + (action.direction == Direction::backward ? 1 : 0);
}

comm::Purpose purpose_of(const plan::Transfer& transfer, Direction direction, bool sending) {
  const bool to_target = sending == (direction == Direction::forward);
  return {.what = direction == Direction::forward ? "activation" : "gradient",
          .stage = to_target ? transfer.to_stage : transfer.from_stage,
          .micro_batch = transfer.micro_batch};
}

c10::ScalarType wide_dtype(const ir::Value& value) {
  return c10::isComplexType(ops::to_torch(value.dtype)) ? at::kComplexDouble : at::kDouble;
}

at::Tensor zeros_on_wire(const ir::Value& value, const plan::Transfer& transfer, int64_t rows,
                         c10::Device device) {
  return at::zeros(
      transfer.whole ? sizes_at(value, rows) : wire_sizes(value, transfer.source.size()),
      at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(device));
}

}  // namespace

PipelineCall::PipelineCall(std::shared_ptr<const RankPart> part,
                           std::shared_ptr<const Orders> orders, int64_t number,
                           std::vector<at::Tensor> inputs,
                           const std::vector<at::Tensor>& parameters,
                           std::vector<at::Tensor> buffers, bool with_backward, bool no_sync,
                           double loss_seed, std::shared_ptr<History> history,
                           std::shared_ptr<KeptGradients> kept)
    : part_(std::move(part)),
      orders_(std::move(orders)),
      number_(number),
      with_backward_(with_backward),
      loss_seed_(loss_seed),
      kept_(std::move(kept)),
      recorder_(with_backward ? std::move(history) : nullptr, number,
                orders_->program.actions[static_cast<size_t>(part_->rank)].size()),
      inputs_(std::move(inputs)),
      buffers_(std::move(buffers)) {
  if (part_->draw_steps) draw_steps_ = *part_->draw_steps;
  if (no_sync) {
    summing_ = Summing::kept;
  } else if (plan::backward_comes_first(program().schedule) && kept_->passes() > 0) {
    summing_ = Summing::late;
  }
  check_arguments(parameters);
  check_tags(program(), part_->graph);
  make_aliases(parameters);
  for (at::Tensor& input : inputs_) {
    input = input.detach().to(part_->device);
  }
  prepare_sums();
  const size_t micro_batches = program().split.micro_rows.size();
  for (size_t stage = 0; stage < part_->stages.size(); ++stage) {
    const LocalStage& local = part_->stages[stage];
    std::vector<MicroBatch> batches(local.stage ? micro_batches : 0);
    for (size_t k = 0; k < batches.size(); ++k) {
      batches[k].rows = program().shares[stage][static_cast<size_t>(local.replica)][k].size();
      batches[k].inputs.resize(local.stage->inputs().size());
      batches[k].output_grads.resize(local.stage->outputs().size());
      batches[k].unsent = orders_->sends[stage][k];
    }
    batches_.push_back(std::move(batches));
  }
  found_buffers_.resize(buffers_.size());
  found_parameters_.resize(parameters_.size());
  updated_.assign(part_->stages.size(), std::vector<std::vector<at::Tensor>>(micro_batches));
  for (ir::ValueId value : part_->scalar_outputs) {
    scalars_.push_back(at::zeros(
        sizes_at(part_->graph[value], 0),
        at::TensorOptions().dtype(wide_dtype(part_->graph[value])).device(part_->device)));
  }
  own_outputs_.resize(part_->output_values.size());
  user_grads_.resize(part_->output_values.size());
  input_grads_.resize(inputs_.size());
}

PipelineCall::~PipelineCall() {
  static std::atomic_flag warned = ATOMIC_FLAG_INIT;
  if (!unused_ || part_->rank != 0 || warned.test_and_set()) return;
  log::warn("runtime",
            c10::str("a loss was never used: under the schedule '", plan::name(program().schedule),
                     "' its backward has run with the forward, for nothing. Call the model under "
                     "torch.no_grad(), or after eval(), where no gradient is wanted"));
}

/// New aliases in each call, so that `parameter.data = ...` is followed.
void PipelineCall::make_aliases(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) parameters_.push_back(parameter.detach());
  if (!with_backward_) return;
  std::vector<std::optional<SumPlace>> places(parameters.size());
  if (summing_ == Summing::in_program) places = sum_places();
  std::vector<size_t> small;
  int64_t bytes = 0;
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (!parameters[index].requires_grad()) continue;
    const auto size = static_cast<int64_t>(parameters[index].nbytes());
    if (const auto place = places[index]) {  // its sum over ranks may start when it is complete
      ops::add_up_gradients(parameters_, {index}, [this, place](size_t /*parameter*/) {
        sums_[place->reduction]->added(place->position);
      });
    } else if (bytes + size > ops::kMostJoinedBytes) {
      ops::add_up_gradients(parameters_, {index});
    } else {
      bytes += size;
      small.push_back(index);
    }
  }
  ops::add_up_gradients(parameters_, small);
}

void PipelineCall::forward() {
  const at::NoGradGuard no_grad;
  std::optional<RankRandom> random;
  if (part_->from_generators && part_->comm->size() > 1) random.emplace(part_->device, part_->rank);
  if (with_backward_ && plan::backward_comes_first(program().schedule)) seed_loss_gradient();
  part_->prelude.run(
      inputs_, [&](const std::string& name) { return buffers_[part_->buffer_place(name)]; },
      orders_->rows, orders_->global_rows, *part_->comm, *part_->stream);
  run(0, orders_->return_outputs);
  finish_outputs();
  if (!with_backward_) finished_ = true;
  unused_ = with_backward_ && plan::backward_comes_first(program().schedule);
}

std::vector<at::Tensor> PipelineCall::backward(std::vector<at::Tensor> output_grads,
                                               bool keep_graph) {
  if (!with_backward_) {
    throw Error(c10::str(
        "backward was called on a forward pass that ran without gradients: under no_grad(), or, "
        "under the schedule '",
        plan::name(program().schedule),
        "', after eval().\n"
        "  Call train() before the forward pass, or use Config(schedule='gpipe')."));
  }
  if (finished_) throw_given_away();
  RANNC_CHECK(output_grads.size() == part_->graph.outputs.size(), c10::str(output_grads.size()));
  const at::NoGradGuard no_grad;
  if (plan::backward_comes_first(program().schedule)) {
    const at::Tensor factor = gradient_of_loss(output_grads);
    unused_ = false;
    outputs_.clear();
    finished_ = !keep_graph;
    std::vector<at::Tensor> gradients =
        keep_graph ? scaled_copies(factor) : scaled_gradients(factor);
    if (summing_ == Summing::kept) {
      keep(gradients);
    } else if (communicates()) {
      sum_late(gradients);
    }
    if (finished_) forget();
    return gradients;
  }
  if (keeps_graph_) prepare_backward();
  keeps_graph_ = keep_graph;
  finished_ = !keep_graph;
  outputs_.clear();
  seed_output_gradients(output_grads);
  output_grads.clear();
  const bool takes_kept = kept_->passes() > 0;
  seed_kept_gradients();
  try {
    run(orders_->return_outputs + 1, program().actions[static_cast<size_t>(part_->rank)].size());
  } catch (...) {
    if (takes_kept) kept_->lose();
    throw;
  }
  std::vector<at::Tensor> gradients = take_gradients();
  if (summing_ == Summing::kept) keep(gradients);
  if (finished_) forget();
  return gradients;
}

/// What an earlier backward of this call has used up.
void PipelineCall::prepare_backward() {
  for (size_t stage = 0; stage < batches_.size(); ++stage) {
    for (MicroBatch& batch : batches_[stage]) {
      batch.output_grads.assign(part_->stages[stage].stage->outputs().size(), {});
    }
  }
  user_grads_.assign(user_grads_.size(), {});
  input_grads_.assign(input_grads_.size(), {});
  prepare_sums();
}

void PipelineCall::run(size_t begin, size_t end) {
  const std::vector<plan::Action>& actions = program().actions[static_cast<size_t>(part_->rank)];
  Exchange exchange(*part_->comm, *part_->stream, first_tag_of(number_));
  try {
    run(actions, begin, end, exchange);
  } catch (const std::exception& error) {
    // Others may have sent what this rank will not take, or have taken no message of its own. With
    // a later call of the same tags they would get each other's numbers.
    const bool sums = std::ranges::any_of(
        sums_, [](const std::unique_ptr<GradientSum>& sum) { return sum && sum->started(); });
    if (sums || exchange.used()) {
      part_->comm->leave_messages(
          c10::str("a call failed on rank ", part_->rank, ": ", error.what()));
    }
    throw;
  }
}

void PipelineCall::run(const std::vector<plan::Action>& actions, size_t begin, size_t end,
                       Exchange& exchange) {
  plan::PostedAhead posted(std::span<const plan::Action>(actions).subspan(begin, end - begin));
  recorder_.start();
  for (size_t at = begin; at < end; ++at) {
    posted.before(at - begin, [&](const plan::Action& receive) { post(receive, exchange); });
    const bool later =
        actions[at].kind == ActionKind::reduce_gradients && summing_ != Summing::in_program;
    if (later) continue;
    if (plan::is_computation(actions[at])) exchange.drop_sent();
    run(actions[at], exchange);
    recorder_.end(static_cast<int>(at), actions[at].kind);
  }
  exchange.wait_sends();
  recorder_.end(/*index=*/-1, ActionKind::send);
}

void PipelineCall::run(const plan::Action& action, Exchange& exchange) {
  switch (action.kind) {
    case ActionKind::forward:
      return run_forward(action.stage, action.micro_batch);
    case ActionKind::backward:
      return run_backward(action.stage, action.micro_batch);
    case ActionKind::send:
      return send(action, exchange);
    case ActionKind::receive:
      return receive(action, exchange);
    case ActionKind::sync_buffers:
      return sync_buffers(action.stage);
    case ActionKind::reduce_outputs:
      return reduce_outputs();
    case ActionKind::reduce_gradients:
      return reduce_gradients(static_cast<size_t>(action.index));
    case ActionKind::release:
      return release(batch(action.stage, action.micro_batch));
    case ActionKind::return_outputs:
      break;
  }
  RANNC_CHECK(false, "return_outputs in the middle of a phase");
}

const LocalStage& PipelineCall::local(int stage) const {
  const LocalStage& local = part_->stages[static_cast<size_t>(stage)];
  RANNC_CHECK(local.stage, c10::str("stage ", stage, " is not on rank ", part_->rank));
  return local;
}

MicroBatch& PipelineCall::batch(int stage, int micro_batch) {
  return batches_[static_cast<size_t>(stage)][static_cast<size_t>(micro_batch)];
}

std::vector<at::Tensor> PipelineCall::state_of(const LocalStage& local) const {
  std::vector<at::Tensor> state;
  for (const StateSource& source : local.state) {
    state.push_back((source.buffer ? buffers_ : parameters_)[source.index]);
  }
  return state;
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

std::vector<at::Tensor> PipelineCall::take_inputs(const LocalStage& local, MicroBatch& batch) {
  std::vector<at::Tensor> inputs;
  for (size_t index = 0; index < local.stage->inputs().size(); ++index) {
    const ir::ValueId id = local.stage->inputs()[index];
    at::Tensor input = std::move(batch.inputs[index].tensor);
    // An argument without rows is the same on every rank.
    if (!input.defined()) input = inputs_[place_of(part_->graph.inputs, id)];
    inputs.push_back(std::move(input));
  }
  batch.inputs.clear();
  return inputs;
}

std::shared_ptr<const DrawKey> PipelineCall::draw_key(int stage, int micro_batch) const {
  if (!part_->draw_steps) return nullptr;
  const auto& shares = program().shares[static_cast<size_t>(stage)];
  const plan::RowRange share =
      shares[static_cast<size_t>(local(stage).replica)][static_cast<size_t>(micro_batch)];
  return std::make_shared<const DrawKey>(
      DrawKey{draw_steps_, plan::samples(program().split, micro_batch, share)});
}

/// With the other replicas that have rows; null when there are none, or the stage does not need it.
std::shared_ptr<WholeBatch> PipelineCall::whole_batch(int stage, int micro_batch) const {
  if (!local(stage).stage->needs_whole_batch()) return nullptr;
  std::vector<plan::Rank> ranks;
  const auto& shares = program().shares[static_cast<size_t>(stage)];
  for (size_t replica = 0; replica < shares.size(); ++replica) {
    if (shares[replica][static_cast<size_t>(micro_batch)].size() == 0) continue;
    ranks.push_back(program().stage_ranks[static_cast<size_t>(stage)][replica]);
  }
  if (ranks.size() < 2) return nullptr;
  std::ranges::sort(ranks);
  // After the tags of the transfers. Stages on the same ranks may share them: they run in the same
  // order everywhere, and messages of equal tags arrive in the order sent.
  const auto transfers = static_cast<int64_t>(program().transfers.size());
  return std::make_shared<WholeBatch>(part_->comm, std::move(ranks),
                                      first_tag_of(number_) + 2 * transfers, stage);
}

/// What a share contributes to a scalar of the whole batch, and receives of its gradient.
double PipelineCall::scalar_weight(ir::ValueId value, const MicroBatch& batch) const {
  if (part_->graph[value].rows.kind == ir::RowKind::sum) return 1;
  return static_cast<double>(batch.rows) / static_cast<double>(orders_->global_rows);
}

void PipelineCall::run_forward(int stage, int micro_batch) {
  const LocalStage& local = this->local(stage);
  MicroBatch& batch = this->batch(stage, micro_batch);
  std::vector<at::Tensor> state = state_of(local);
  const std::shared_ptr<const DrawKey> key = draw_key(stage, micro_batch);
  write_once(local, state);
  if (batch.rows == 0) return local.stage->skip(state, key.get());

  if (local.statistics.shared()) {
    updated_[static_cast<size_t>(stage)][static_cast<size_t>(micro_batch)] =
        local.statistics.lend(state);
  }
  std::vector<at::Tensor> inputs = take_inputs(local, batch);
  const std::shared_ptr<WholeBatch> whole = whole_batch(stage, micro_batch);
  batch.outputs =
      with_backward_ ? local.stage->forward(std::move(inputs), local.input_requires_grad, state,
                                            batch.rows, local.recompute, batch.pass, key, whole)
                     : local.stage->forward(std::move(inputs), state, batch.rows, key.get(), whole);
  for (size_t index = 0; index < scalars_.size(); ++index) {
    const ir::ValueId value = part_->scalar_outputs[index];
    const int output = local.stage->find_output(value);
    if (output < 0) continue;
    scalars_[index].add_(
        batch.outputs[static_cast<size_t>(output)].to(scalars_[index].scalar_type()),
        scalar_weight(value, batch));
  }
  if (batch.unsent == 0) batch.outputs.clear();
}

void PipelineCall::run_backward(int stage, int micro_batch) {
  const LocalStage& local = this->local(stage);
  MicroBatch& batch = this->batch(stage, micro_batch);
  const bool last = micro_batch == orders_->last_backward[static_cast<size_t>(stage)];
  if (last) begin_sums(stage);
  if (batch.rows > 0) run_backward(local, batch);
  if (last) start_sums(stage);
}

void PipelineCall::run_backward(const LocalStage& local, MicroBatch& batch) {
  for (ir::ValueId value : part_->scalar_outputs) {
    const int output = local.stage->find_output(value);
    const at::Tensor& grad = user_grads_[place_of(part_->output_values, value)];
    if (output < 0 || !grad.defined()) continue;
    add_whole(batch.output_grads[static_cast<size_t>(output)],
              grad.mul(scalar_weight(value, batch)));
  }
  std::vector<at::Tensor> grads;
  for (Assembly& grad : batch.output_grads) grads.push_back(std::move(grad.tensor));
  batch.output_grads.clear();
  StagePass pass = keeps_graph_ ? batch.pass : std::exchange(batch.pass, {});
  batch.input_grads =
      local.stage->backward(std::move(pass), std::move(grads), state_of(local), keeps_graph_);
}

PipelineCall::End PipelineCall::origin(const plan::Transfer& transfer, Direction direction) {
  const bool forward = direction == Direction::forward;
  const int stage = forward ? transfer.from_stage : transfer.to_stage;
  End end;
  end.range = forward ? transfer.source : transfer.target;
  if (stage == kUser) {
    end.rows = orders_->rows;
    end.tensor = forward ? inputs_[place_of(part_->graph.inputs, transfer.value)]
                         : user_grads_[place_of(part_->output_values, transfer.value)];
    return end;
  }
  MicroBatch& batch = this->batch(stage, transfer.micro_batch);
  end.rows = batch.rows;
  const int place = forward ? local(stage).stage->find_output(transfer.value)
                            : local(stage).stage->find_input(transfer.value);
  RANNC_CHECK(place >= 0, part_->graph[transfer.value].name);
  end.tensor = (forward ? batch.outputs : batch.input_grads)[static_cast<size_t>(place)];
  return end;
}

PipelineCall::End PipelineCall::target(const plan::Transfer& transfer, Direction direction) {
  const bool forward = direction == Direction::forward;
  const int stage = forward ? transfer.to_stage : transfer.from_stage;
  End end;
  end.range = forward ? transfer.target : transfer.source;
  if (stage == kUser) {
    end.rows = orders_->rows;
    end.assembly = forward ? &own_outputs_[place_of(part_->output_values, transfer.value)]
                           : &input_grads_[place_of(part_->graph.inputs, transfer.value)];
    return end;
  }
  MicroBatch& batch = this->batch(stage, transfer.micro_batch);
  end.rows = batch.rows;
  const int place = forward ? local(stage).stage->find_input(transfer.value)
                            : local(stage).stage->find_output(transfer.value);
  RANNC_CHECK(place >= 0, part_->graph[transfer.value].name);
  end.assembly = &(forward ? batch.inputs : batch.output_grads)[static_cast<size_t>(place)];
  return end;
}

void PipelineCall::send(const plan::Action& action, Exchange& exchange) {
  const plan::Transfer& transfer = program().transfers[static_cast<size_t>(action.index)];
  const bool forward = action.direction == Direction::forward;
  const ir::Value& value = part_->graph[transfer.value];
  End from = origin(transfer, action.direction);
  const int peer = forward ? transfer.to : transfer.from;
  const bool to_myself = peer == part_->rank;

  at::Tensor message = std::move(from.tensor);
  if (!message.defined()) {
    // No gradient flows. The receiver waits for one all the same, unless it is this rank.
    RANNC_CHECK(!forward, value.name);
    if (!to_myself) message = zeros_on_wire(value, transfer, from.rows, part_->device);
  } else if (transfer.whole) {
    if (transfer.weight != 1) message = message.mul(transfer.weight);
  } else if (to_myself) {
    message = take_rows(message, value.rows, from.rows, from.range);
  } else {
    message = rows_first(message, value.rows, from.rows, from.range);
  }
  if (to_myself) {
    exchange.leave(slot_of(action), std::move(message));
  } else {
    exchange.send(slot_of(action), peer, plain(message),
                  purpose_of(transfer, action.direction, /*sending=*/true));
  }
  if (forward && transfer.from_stage != kUser) {
    MicroBatch& batch = this->batch(transfer.from_stage, transfer.micro_batch);
    if (--batch.unsent == 0) batch.outputs.clear();
  }
}

void PipelineCall::post(const plan::Action& action, Exchange& exchange) {
  const plan::Transfer& transfer = program().transfers[static_cast<size_t>(action.index)];
  const bool forward = action.direction == Direction::forward;
  const int peer = forward ? transfer.from : transfer.to;
  if (peer == part_->rank) return;
  const ir::Value& value = part_->graph[transfer.value];
  const End to = target(transfer, action.direction);
  const auto options = at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(part_->device);
  at::Tensor wire;
  if (transfer.whole) {
    const int64_t rows = program().split.micro_rows[static_cast<size_t>(transfer.micro_batch)];
    wire = at::empty(sizes_at(value, rows), options);
  } else if (forward) {
    if (!to.assembly->tensor.defined()) allocate(*to.assembly, value, to.rows, part_->device);
    wire = rows_first(to.assembly->tensor, value.rows, to.rows, to.range);
  }
  // Straight into its place where the rows lie together there.
  if (!wire.defined() || !wire.is_contiguous()) {
    wire = at::empty(wire_sizes(value, to.range.size()), options);
  }
  exchange.post(slot_of(action), peer, std::move(wire),
                purpose_of(transfer, action.direction, /*sending=*/false));
}

void PipelineCall::receive(const plan::Action& action, Exchange& exchange) {
  const plan::Transfer& transfer = program().transfers[static_cast<size_t>(action.index)];
  const bool forward = action.direction == Direction::forward;
  const bool from_myself = (forward ? transfer.from : transfer.to) == part_->rank;
  const ir::Value& value = part_->graph[transfer.value];
  const End to = target(transfer, action.direction);
  const at::Tensor message =
      from_myself ? exchange.fetch(slot_of(action)) : exchange.receive(slot_of(action));
  if (!message.defined()) return;
  if (transfer.whole) return add_whole(*to.assembly, message);
  if (!forward) {
    const plan::RowRange all{0, to.range.size()};
    add_rows(*to.assembly, value, to.rows, to.range,
             from_myself ? rows_first(message, value.rows, to.range.size(), all) : message);
  } else if (from_myself) {
    place_rows(*to.assembly, value, to.rows, to.range, message);
  } else {
    const at::Tensor place = rows_first(to.assembly->tensor, value.rows, to.rows, to.range);
    if (!place.is_contiguous()) place.copy_(message);
  }
}

void PipelineCall::sync_buffers(int stage) {
  const LocalStage& local = this->local(stage);
  if (!local.statistics.shared()) return;
  std::vector<double> weights;
  for (size_t k = 0; k < program().split.micro_rows.size(); ++k) {
    weights.push_back(static_cast<double>(batches_[static_cast<size_t>(stage)][k].rows) /
                      static_cast<double>(program().split.micro_rows[k]));
  }
  std::vector<plan::Rank> ranks = program().stage_ranks[static_cast<size_t>(stage)];
  std::ranges::sort(ranks);
  local.statistics.sync(updated_[static_cast<size_t>(stage)], weights, state_of(local),
                        *part_->comm, *part_->stream, ranks,
                        {.what = "running statistics", .stage = stage, .micro_batch = -1});
  for (std::vector<at::Tensor>& updated : updated_[static_cast<size_t>(stage)]) updated.clear();
}

void PipelineCall::reduce_outputs() {
  sum_scalars(scalars_, *part_->comm, *part_->stream, "loss reduction");
}

void PipelineCall::release(MicroBatch& batch) {
  MicroBatch left;
  left.rows = batch.rows;  // the running statistics still ask for it
  if (keeps_graph_) left.pass = std::move(batch.pass);
  batch = std::move(left);
}

}  // namespace rannc::runtime
