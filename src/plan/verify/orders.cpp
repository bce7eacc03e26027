#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "plan/verify/program_checks.h"

namespace rannc::plan {
namespace {

/// Follows the orders of one rank and counts what it did.
class RankChecker {
 public:
  RankChecker(const Program& program, const ir::Graph& graph, const Holders& holders, Rank rank,
              const std::vector<int>& transfers)
      : program_(program), rank_(rank) {
    for (ir::ValueId output : program.outputs) {
      const ir::RowKind kind = graph[output].rows.kind;
      scalar_outputs_ |= kind == ir::RowKind::mean || kind == ir::RowKind::sum;
    }
    for (int stage = 0; stage < program.stages(); ++stage) {
      if (!holders.runs(stage, rank)) continue;
      stages_.push_back(stage);
      for (int k = 0; k < program.split.micro_batches; ++k) slots_[{stage, k}];
    }
    for (int index : transfers) {
      const Transfer& transfer = program.transfers[index];
      if (transfer.to == rank) expect(index, transfer.to_stage, &Slot::inputs, false, true);
      if (transfer.from == rank) expect(index, transfer.from_stage, &Slot::outputs, true, false);
    }
  }

  void check() {
    for (const Action& action : program_.actions[rank_]) follow(action);
    for (const auto& [where, slot] : slots_) {
      if (where.first != kUser && slot.phase != Phase::released) {
        wrong(fmt::format("stage {} never finishes micro-batch {}", where.first, where.second));
      }
    }
    if (!open_.empty()) {
      const auto& [index, direction, sends] = *open_.begin();
      wrong(fmt::format("transfer {} is never {} {}", index, sends ? "sent" : "received",
                        direction == Direction::forward ? "forward" : "backward"));
    }
    if (scalar_outputs_ && !reduced_outputs_) wrong("the scalar outputs are not reduced");
    if (returns() && !returned_) wrong("the outputs are never returned");
    for (size_t index = 0; index < program_.reductions.size(); ++index) {
      const bool takes_part = std::ranges::binary_search(program_.reductions[index].ranks, rank_);
      if (takes_part != reductions_.contains(static_cast<int>(index))) {
        wrong(fmt::format("reduction {} is {}", index, takes_part ? "left out" : "not its own"));
      }
    }
  }

  [[nodiscard]] const std::set<int>& synced() const { return synced_; }

 private:
  enum class Phase { waiting, forwarded, backwarded, released };
  struct Slot {
    Phase phase = Phase::waiting;
    int inputs = 0, outputs = 0;            // messages not yet moved forward
    int input_grads = 0, output_grads = 0;  // and backward
  };
  using Open = std::tuple<int, Direction, bool>;  // transfer, direction, whether this rank sends

  [[noreturn]] void wrong(const std::string& why) const {
    fail_program(fmt::format("on rank {}, {}", rank_, why));
  }

  [[nodiscard]] bool returns() const {
    return program_.training && program_.schedule == Schedule::gpipe;
  }

  void expect(int index, int stage, int Slot::*count, bool sends_forward, bool sends_backward) {
    const Transfer& transfer = program_.transfers[index];
    Slot& slot = slots_[{stage, transfer.micro_batch}];
    ++(slot.*count);
    open_.insert({index, Direction::forward, sends_forward});
    if (!transfer.grad) return;
    ++(count == &Slot::inputs ? slot.input_grads : slot.output_grads);
    open_.insert({index, Direction::backward, sends_backward});
  }

  void follow(const Action& action) {
    switch (action.kind) {
      case ActionKind::send:
      case ActionKind::receive:
        move(action);
        return;
      case ActionKind::forward:
      case ActionKind::backward:
      case ActionKind::release:
        compute(action);
        return;
      case ActionKind::sync_buffers:
        if (!std::ranges::count(stages_, action.stage) || !synced_.insert(action.stage).second ||
            !forwards_ended()) {
          wrong(fmt::format("the buffers of stage {} are joined at the wrong place", action.stage));
        }
        return;
      case ActionKind::reduce_outputs:
        if (!scalar_outputs_ || reduced_outputs_ || returned_ || !forwards_ended()) {
          wrong("the scalar outputs are reduced at the wrong place");
        }
        reduced_outputs_ = true;
        return;
      case ActionKind::return_outputs:
        if (!returns() || returned_ || !forwards_ended() || !outputs_arrived()) {
          wrong("the outputs are returned at the wrong place");
        }
        returned_ = true;
        return;
      case ActionKind::reduce_gradients:
        reduce(action.index);
        return;
    }
  }

  void move(const Action& action) {
    const bool sends = action.kind == ActionKind::send;
    const bool forward = action.direction == Direction::forward;
    if (open_.erase({action.index, action.direction, sends}) == 0) {
      wrong(fmt::format("transfer {} is {} twice, or not its own", action.index,
                        sends ? "sent" : "received"));
    }
    const Transfer& transfer = program_.transfers[action.index];
    const bool at_source = sends == forward;
    const int stage = at_source ? transfer.from_stage : transfer.to_stage;
    Slot& slot = slots_.at({stage, transfer.micro_batch});
    --(forward ? (at_source ? slot.outputs : slot.inputs)
               : (at_source ? slot.output_grads : slot.input_grads));
    if (stage == kUser) {
      if (sends && !forward && !returned_) {
        wrong(fmt::format("the gradient of transfer {} is sent before the outputs are returned",
                          action.index));
      }
      return;
    }
    const Phase needed = sends ? (forward ? Phase::forwarded : Phase::backwarded)
                               : (forward ? Phase::waiting : Phase::forwarded);
    if (slot.phase != needed) {
      wrong(fmt::format("transfer {} of stage {}, micro-batch {} is {} at the wrong place",
                        action.index, stage, transfer.micro_batch, sends ? "sent" : "received"));
    }
  }

  void compute(const Action& action) {
    const auto found = slots_.find({action.stage, action.micro_batch});
    const auto where = fmt::format("stage {}, micro-batch {}", action.stage, action.micro_batch);
    if (action.stage == kUser || found == slots_.end()) wrong(where + " is not its own");
    Slot& slot = found->second;
    switch (action.kind) {
      case ActionKind::forward:
        if (slot.phase != Phase::waiting) wrong(where + " runs forward twice");
        if (slot.inputs != 0) wrong(where + " runs forward before its inputs have arrived");
        if (returned_) wrong(where + " runs forward after the outputs are returned");
        slot.phase = Phase::forwarded;
        return;
      case ActionKind::backward:
        if (!program_.training || slot.phase != Phase::forwarded) {
          wrong(where + " runs backward at the wrong place");
        }
        if (slot.output_grads != 0)
          wrong(where + " runs backward before its gradients have arrived");
        if (returns() && !returned_)
          wrong(where + " runs backward before the outputs are returned");
        slot.phase = Phase::backwarded;
        return;
      default:
        if (slot.phase != (program_.training ? Phase::backwarded : Phase::forwarded) ||
            slot.outputs != 0 || slot.input_grads != 0) {
          wrong(where + " is released while it is needed");
        }
        slot.phase = Phase::released;
    }
  }

  void reduce(int index) {
    if (index < 0 || index >= static_cast<int>(program_.reductions.size())) {
      wrong(fmt::format("there is no reduction {}", index));
    }
    if (!reductions_.empty() && index <= *reductions_.rbegin()) {
      wrong(fmt::format("reduction {} follows reduction {}", index, *reductions_.rbegin()));
    }
    reductions_.insert(index);
    for (const auto& [where, slot] : slots_) {
      if (!std::ranges::count(program_.reductions[index].stages, where.first)) continue;
      if (slot.phase < Phase::backwarded) {
        wrong(fmt::format("reduction {} precedes the backward of stage {}, micro-batch {}", index,
                          where.first, where.second));
      }
    }
  }

  [[nodiscard]] bool forwards_ended() const {
    return std::ranges::all_of(slots_, [](const auto& item) {
      return item.first.first == kUser || item.second.phase != Phase::waiting;
    });
  }
  [[nodiscard]] bool outputs_arrived() const {
    return std::ranges::all_of(slots_, [](const auto& item) {
      return item.first.first != kUser || item.second.inputs == 0;
    });
  }

  const Program& program_;
  Rank rank_;
  bool scalar_outputs_ = false;
  bool reduced_outputs_ = false;
  bool returned_ = false;
  std::vector<int> stages_;
  std::map<std::pair<int, int>, Slot> slots_;  // by stage and micro-batch
  std::set<Open> open_;
  std::set<int> reductions_;
  std::set<int> synced_;
};

}  // namespace

void check_orders(const Program& program, const ir::Graph& graph, const Holders& holders) {
  std::vector<std::vector<int>> transfers_of(program.actions.size());
  for (int index = 0; index < static_cast<int>(program.transfers.size()); ++index) {
    const Transfer& transfer = program.transfers[index];
    transfers_of[transfer.from].push_back(index);
    if (transfer.to != transfer.from) transfers_of[transfer.to].push_back(index);
  }
  std::map<int, size_t> synced;  // by stage: how many ranks
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    RankChecker checker(program, graph, holders, rank, transfers_of[rank]);
    checker.check();
    for (int stage : checker.synced()) ++synced[stage];
  }
  for (const auto& [stage, ranks] : synced) {
    if (ranks == program.stage_ranks[stage].size() && ranks > 1) continue;
    fail_program(fmt::format("the buffers of stage {} are joined on {} of its {} ranks", stage,
                             ranks, program.stage_ranks[stage].size()));
  }
}

}  // namespace rannc::plan
