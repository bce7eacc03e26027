#include "runtime/call/row_moves.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "rannc/ops/dtype.h"
#include "rannc/util/error.h"
#include "runtime/call/tags.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {
namespace {

using plan::Direction;
using plan::kUser;

int64_t slot_of(const plan::Action& action) {
  return 2 * static_cast<int64_t>(action.index) + (action.direction == Direction::backward ? 1 : 0);
}

comm::Purpose purpose_of(const plan::Transfer& transfer, Direction direction, bool sending) {
  const bool to_target = sending == (direction == Direction::forward);
  return {.what = direction == Direction::forward ? "activation" : "gradient",
          .stage = to_target ? transfer.to_stage : transfer.from_stage,
          .micro_batch = transfer.micro_batch,
          .back = direction == Direction::backward};
}

size_t input_place(const LocalStage& local, const ir::Value& value, ir::ValueId id) {
  const int place = local.stage->find_input(id);
  RANNC_CHECK(place >= 0, value.name);
  return static_cast<size_t>(place);
}

size_t output_place(const LocalStage& local, const ir::Value& value, ir::ValueId id) {
  const int place = local.stage->find_output(id);
  RANNC_CHECK(place >= 0, value.name);
  return static_cast<size_t>(place);
}

}  // namespace

RowMoves::RowMoves(const RankPart& part, const Orders& orders, int64_t call, MicroBatches& batches,
                   CallBoundary& boundary, const std::vector<bool>& flows)
    : part_(part),
      orders_(orders),
      batches_(batches),
      boundary_(boundary),
      flows_(flows),
      exchange_(*part.comm, *part.stream, part.device, first_tag_of(call)) {}

const plan::Transfer& RowMoves::transfer_of(const plan::Action& action) const {
  return orders_.program.transfers[static_cast<size_t>(action.index)];
}

RowMoves::Origin RowMoves::origin(const plan::Transfer& transfer, Direction direction) {
  const bool forward = direction == Direction::forward;
  const int stage = forward ? transfer.from_stage : transfer.to_stage;
  const plan::RowRange range = forward ? transfer.source : transfer.target;
  if (stage == kUser) {
    return {forward ? boundary_.input(transfer.value) : boundary_.output_gradient(transfer.value),
            orders_.rows, range};
  }
  const LocalStage& local = part_.local(stage);
  const ir::Value& value = part_.graph[transfer.value];
  const MicroBatch& batch = batches_.at(stage, transfer.micro_batch);
  return {forward ? batch.outputs[output_place(local, value, transfer.value)]
                  : batch.input_grads[input_place(local, value, transfer.value)],
          batch.rows, range};
}

RowMoves::Target RowMoves::target(const plan::Transfer& transfer, Direction direction) {
  const bool forward = direction == Direction::forward;
  const int stage = forward ? transfer.to_stage : transfer.from_stage;
  const plan::RowRange range = forward ? transfer.target : transfer.source;
  if (stage == kUser) {
    return {
        forward ? boundary_.own_output(transfer.value) : boundary_.input_gradient(transfer.value),
        orders_.rows, range};
  }
  const LocalStage& local = part_.local(stage);
  const ir::Value& value = part_.graph[transfer.value];
  MicroBatch& batch = batches_.at(stage, transfer.micro_batch);
  return {forward ? batch.inputs[input_place(local, value, transfer.value)]
                  : batch.output_grads[output_place(local, value, transfer.value)],
          batch.rows, range};
}

at::Tensor RowMoves::zeros_on_wire(const plan::Transfer& transfer, int64_t rows) const {
  const ir::Value& value = part_.graph[transfer.value];
  return at::zeros(
      transfer.whole ? sizes_at(value, rows) : wire_sizes(value, transfer.source.size()),
      at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(part_.device_of(value)));
}

bool RowMoves::is_sender(const plan::Action& action) const {
  const plan::Transfer& transfer = transfer_of(action);
  const bool forward = action.direction == Direction::forward;
  return (forward ? transfer.from : transfer.to) == part_.rank;
}

/// What a send carries away, and a stage's outputs are freed with the last of them. Undefined when
/// no gradient flows within this rank.
at::Tensor RowMoves::take_message(const plan::Action& action) {
  const plan::Transfer& transfer = transfer_of(action);
  const bool forward = action.direction == Direction::forward;
  const ir::Value& value = part_.graph[transfer.value];
  Origin from = origin(transfer, action.direction);
  const bool to_myself = transfer.from == transfer.to;

  at::Tensor message = std::move(from.tensor);
  if (!message.defined()) {
    // No gradient flows. The receiver waits for one all the same, unless it is this rank.
    RANNC_CHECK(!forward, value.name);
    if (!to_myself) message = zeros_on_wire(transfer, from.rows);
  } else if (transfer.whole) {
    if (transfer.weight != 1) message = message.mul(transfer.weight);
  } else if (to_myself) {
    message = take_rows(message, value.rows, from.rows, from.range);
  } else {
    message = rows_first(message, value.rows, from.rows, from.range);
  }
  if (forward && transfer.from_stage != kUser) {
    MicroBatch& batch = batches_.at(transfer.from_stage, transfer.micro_batch);
    if (--batch.unsent == 0) batch.outputs.clear();
  }
  return message;
}

void RowMoves::send(const plan::Action& action) {
  const plan::Transfer& transfer = transfer_of(action);
  at::Tensor message = take_message(action);
  if (transfer.from == transfer.to) return exchange_.leave(slot_of(action), std::move(message));
  const bool forward = action.direction == Direction::forward;
  exchange_.send(slot_of(action), forward ? transfer.to : transfer.from, plain(message),
                 purpose_of(transfer, action.direction, /*sending=*/true));
}

void RowMoves::prepare(const plan::Action& action) {
  const plan::Transfer& transfer = transfer_of(action);
  if (!prepared_.insert(slot_of(action)).second) return;
  at::Tensor message = take_message(action);
  if (transfer.from == transfer.to) {
    exchange_.leave(slot_of(action), std::move(message));
  } else {
    exchange_.hold(slot_of(action), plain(message));
  }
}

void RowMoves::reserve(const plan::Action& action) {
  const plan::Transfer& transfer = transfer_of(action);
  if (transfer.from == transfer.to || is_sender(action)) return;
  if (exchange_.holds(slot_of(action)) || exchange_.is_posted(slot_of(action))) return;
  exchange_.hold(slot_of(action), memory_for(action));
}

void RowMoves::issue(int transfer, Direction direction) {
  const plan::Transfer& moved = orders_.program.transfers[static_cast<size_t>(transfer)];
  if (moved.from == moved.to) return;
  const plan::Action action{.index = transfer, .direction = direction};
  const bool sends = is_sender(action);
  const bool forward = direction == Direction::forward;
  const int peer = forward == sends ? moved.to : moved.from;
  const comm::Purpose purpose = purpose_of(moved, direction, sends);
  if (sends) {
    prepare(action);
    exchange_.start_send(slot_of(action), peer, purpose);
  } else {
    reserve(action);
    exchange_.start_receive(slot_of(action), peer, purpose);
  }
}

bool RowMoves::is_issued(const plan::Action& action) const {
  const plan::Transfer& transfer = transfer_of(action);
  return transfer.from == transfer.to || exchange_.is_posted(slot_of(action));
}

void RowMoves::post(const plan::Action& action) {
  const plan::Transfer& transfer = transfer_of(action);
  if (transfer.from == transfer.to) return;
  const bool forward = action.direction == Direction::forward;
  exchange_.post(slot_of(action), forward ? transfer.from : transfer.to, memory_for(action),
                 purpose_of(transfer, action.direction, /*sending=*/false));
}

at::Tensor RowMoves::memory_for(const plan::Action& action) {
  const plan::Transfer& transfer = transfer_of(action);
  const bool forward = action.direction == Direction::forward;
  const ir::Value& value = part_.graph[transfer.value];
  const Target to = target(transfer, action.direction);
  const c10::Device device = part_.device_of(value);
  const auto options = at::TensorOptions().dtype(ops::to_torch(value.dtype)).device(device);
  at::Tensor wire;
  if (transfer.whole) {
    const auto k = static_cast<size_t>(transfer.micro_batch);
    wire = at::empty(sizes_at(value, orders_.program.split.micro_rows[k]), options);
  } else if (forward) {
    if (!to.assembly.tensor.defined()) allocate(to.assembly, value, to.rows, device);
    wire = rows_first(to.assembly.tensor, value.rows, to.rows, to.range);
  }
  // Straight into its place where the rows lie together there.
  if (!wire.defined() || !wire.is_contiguous()) {
    wire = at::empty(wire_sizes(value, to.range.size()), options);
  }
  return wire;
}

void RowMoves::receive(const plan::Action& action) {
  const plan::Transfer& transfer = transfer_of(action);
  const bool forward = action.direction == Direction::forward;
  const bool from_myself = (forward ? transfer.from : transfer.to) == part_.rank;
  const ir::Value& value = part_.graph[transfer.value];
  const Target to = target(transfer, action.direction);
  const at::Tensor message =
      from_myself ? exchange_.fetch(slot_of(action)) : exchange_.receive(slot_of(action));
  if (!message.defined()) return;
  // Zeros, which stand for the gradient that nobody has.
  if (!forward && !flows_.empty() && !flows_[transfer.value.index]) return;
  if (transfer.whole) return add_whole(to.assembly, message);
  if (!forward) {
    const plan::RowRange all{0, to.range.size()};
    add_rows(to.assembly, value, to.rows, to.range,
             from_myself ? rows_first(message, value.rows, to.range.size(), all) : message);
  } else if (from_myself) {
    place_rows(to.assembly, value, to.rows, to.range, message);
  } else {
    const at::Tensor place = rows_first(to.assembly.tensor, value.rows, to.rows, to.range);
    if (!place.is_contiguous()) place.copy_(message);
  }
}

}  // namespace rannc::runtime
