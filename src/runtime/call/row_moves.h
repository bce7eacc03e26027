#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_set>

#include "rannc/plan/program.h"
#include "runtime/call/call_boundary.h"
#include "runtime/call/exchange.h"
#include "runtime/call/micro_batches.h"
#include "runtime/call/orders.h"
#include "runtime/call/rank_part.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {

/// The transfers of one phase of a call (up to the outputs, or from there on): here they are issued
/// and waited for. It takes rows and gradients from the micro-batches of one stage, or from the
/// user, cuts out those of a transfer, and puts them together at the other end.
///
/// It belongs to the thread that walks the actions of the phase.
class RowMoves {
 public:
  /// `call`: its number, from which the tags follow. All that it is given must outlive it.
  /// `flows`: [value], whether it has a gradient; empty: not known.
  RowMoves(const RankPart& part, const Orders& orders, int64_t call, MicroBatches& batches,
           CallBoundary& boundary, const std::vector<bool>& flows);

  /// Starts a receive; nothing is done for what this rank sends to itself.
  void post(const plan::Action& action);
  /// Puts what has arrived for a posted receive into its place.
  void receive(const plan::Action& action);
  /// Starts a send, and frees a stage's outputs with the last that carries them away.
  void send(const plan::Action& action);

  // The same where the Program's order says when a message is issued (runtime::Issues).

  /// Cuts out what a send takes, if that is not done: it waits for what the device was given until
  /// now, not for what comes before the issue.
  void prepare(const plan::Action& action);
  /// Takes the memory of a receive, likewise.
  void reserve(const plan::Action& action);
  /// Starts the message of one transfer, or nothing for one inside of this rank.
  void issue(int transfer, plan::Direction direction);
  /// Whether receive() can be called for it.
  [[nodiscard]] bool is_issued(const plan::Action& action) const;

  /// Frees the memory of sends that are done.
  void drop_sent() { exchange_.drop_sent(); }
  void wait_sends() { exchange_.wait_sends(); }
  /// Whether a message to or from another rank was ever under way.
  [[nodiscard]] bool used() const { return exchange_.used(); }

 private:
  /// Where the rows of a transfer are taken from.
  struct Origin {
    at::Tensor tensor;  ///< undefined: no gradient flows
    int64_t rows = 0;   ///< that the whole tensor has
    plan::RowRange range;
  };
  /// Where they go.
  struct Target {
    Assembly& assembly;
    int64_t rows = 0;
    plan::RowRange range;
  };

  [[nodiscard]] at::Tensor take_message(const plan::Action& action);
  [[nodiscard]] at::Tensor memory_for(const plan::Action& action);
  [[nodiscard]] bool is_sender(const plan::Action& action) const;
  [[nodiscard]] const plan::Transfer& transfer_of(const plan::Action& action) const;
  [[nodiscard]] Origin origin(const plan::Transfer& transfer, plan::Direction direction);
  [[nodiscard]] Target target(const plan::Transfer& transfer, plan::Direction direction);
  [[nodiscard]] at::Tensor zeros_on_wire(const plan::Transfer& transfer, int64_t rows) const;

  const RankPart& part_;
  const Orders& orders_;
  MicroBatches& batches_;
  CallBoundary& boundary_;
  const std::vector<bool>& flows_;
  Exchange exchange_;
  std::unordered_set<int64_t> prepared_;  // slots of sends
};

}  // namespace rannc::runtime
