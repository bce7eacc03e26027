#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "plan/verify/program_checks.h"

namespace rannc::plan {
namespace {

constexpr double kRoundOff = 1e-9;  // of weights that sum to one

std::string side(int stage) { return stage == kUser ? "the user" : fmt::format("stage {}", stage); }

class TransferChecker {
 public:
  TransferChecker(const Program& program, const ir::Graph& graph, const Holders& holders)
      : program_(program), graph_(graph), holders_(holders) {}

  void check() {
    for (const Transfer& transfer : program_.transfers) {
      check_ends(transfer);
      arrivals_[{transfer.value, transfer.to_stage}].push_back(&transfer);
    }
    for (ir::ValueId output : program_.outputs) {
      const ir::RowKind kind = graph_[output].rows.kind;
      if (kind == ir::RowKind::mean || kind == ir::RowKind::sum) continue;
      if (!arrivals_.contains({output, kUser})) {
        fail_program(fmt::format("the output '{}' never reaches the user", graph_[output].name));
      }
    }
    for (const auto& [where, transfers] : arrivals_) {
      const ir::Value& value = graph_[where.first];
      check_origin(value, transfers);
      switch (value.rows.kind) {
        case ir::RowKind::apart:
          check_rows(value, where.second, transfers);
          break;
        case ir::RowKind::mean:
        case ir::RowKind::sum:
          check_weights(value, where.second, transfers);
          break;
        case ir::RowKind::mixed:
        case ir::RowKind::none:
          if (where.second == kUser && ir::has_row_dimension(value)) {
            check_rows(value, where.second, transfers);
          } else {
            check_single(value, where.second, transfers);
          }
      }
    }
  }

 private:
  void check_ends(const Transfer& transfer) const {
    const ir::Value& value = graph_[transfer.value];
    const auto valid = [&](int stage, Rank rank) {
      if (rank < 0 || rank >= program_.ranks()) return false;
      return stage == kUser || holders_.runs(stage, rank);
    };
    if (!valid(transfer.from_stage, transfer.from) || !valid(transfer.to_stage, transfer.to)) {
      fail_program(fmt::format(
          "a transfer of '{}' goes from {} on rank {} to {} on rank {}, which do not run "
          "there",
          value.name, side(transfer.from_stage), transfer.from, side(transfer.to_stage),
          transfer.to));
    }
    if (transfer.to_stage != kUser && transfer.from_stage >= transfer.to_stage) {
      fail_program(fmt::format("'{}' goes from stage {} back to stage {}", value.name,
                               transfer.from_stage, transfer.to_stage));
    }
    if (transfer.from_stage == kUser &&
        (transfer.to_stage == kUser || value.kind != ir::ValueKind::input)) {
      fail_program(fmt::format("the user sends '{}', which is not an input", value.name));
    }
    if (transfer.micro_batch < 0 || transfer.micro_batch >= program_.split.micro_batches) {
      fail_program(fmt::format("'{}' belongs to micro-batch {}", value.name, transfer.micro_batch));
    }
    if (transfer.to_stage == kUser &&
        !std::ranges::binary_search(program_.outputs, transfer.value)) {
      fail_program(fmt::format("'{}' goes to the user, who does not get it", value.name));
    }
    // Where backward comes first, the user has no gradient to give.
    const bool user_has_one = program_.schedule == Schedule::gpipe || transfer.to_stage != kUser;
    const bool may_have_gradient =
        user_has_one && value.requires_grad && ir::is_floating(value.dtype);
    if (transfer.grad != (program_.training && may_have_gradient)) {
      fail_program(fmt::format("the gradient of '{}' is {}", value.name,
                               transfer.grad ? "sent, but there is none" : "lost"));
    }
  }

  /// A stage that passes an input on must have got it.
  void check_origin(const ir::Value& value, const std::vector<const Transfer*>& transfers) const {
    if (value.kind != ir::ValueKind::input || value.rows.kind == ir::RowKind::none) return;
    for (const Transfer* transfer : transfers) {
      const int stage = transfer->from_stage;
      if (stage == kUser || arrivals_.contains({transfer->value, stage})) continue;
      fail_program(fmt::format("stage {} passes on '{}', but never gets it", stage, value.name));
    }
  }

  /// Every receiver's rows arrive exactly once and in the sender's order.
  void check_rows(const ir::Value& value, int to_stage,
                  const std::vector<const Transfer*>& transfers) const {
    std::map<std::pair<int, Rank>, std::vector<RowRange>> received;
    for (const Transfer* transfer : transfers) {
      const int k = transfer->micro_batch;
      const RowRange held = holders_.rows(transfer->from_stage, transfer->from, k);
      const RowRange wanted = holders_.rows(to_stage, transfer->to, k);
      const int64_t sent = held.begin + transfer->source.begin -
                           holders_.first_local_row(transfer->from_stage, transfer->from, k);
      const int64_t arrived = wanted.begin + transfer->target.begin -
                              holders_.first_local_row(to_stage, transfer->to, k);
      const int64_t size = transfer->source.size();
      if (transfer->whole || size < 1 || transfer->target.size() != size || sent != arrived ||
          sent < held.begin || sent + size > held.end) {
        fail_program(fmt::format(
            "rows {} to {} of '{}' of micro-batch {} on rank {} arrive as rows {} to {} "
            "on rank {}",
            sent, sent + size, value.name, k, transfer->from, arrived,
            arrived + transfer->target.size(), transfer->to));
      }
      received[{k, transfer->to}].push_back({arrived, arrived + size});
    }
    for (int k = 0; k < static_cast<int>(program_.split.micro_batches); ++k) {
      for (Rank rank : holders_.ranks(to_stage)) {
        const RowRange wanted = holders_.rows(to_stage, rank, k);
        std::vector<RowRange>& ranges = received[{k, rank}];
        std::ranges::sort(ranges, {}, &RowRange::begin);
        int64_t row = wanted.begin;
        for (RowRange range : ranges) {
          if (range.begin != row) break;
          row = range.end;
        }
        if (row == wanted.end && total(ranges) == wanted.size()) continue;
        fail_program(
            fmt::format("{} on rank {} gets row {} of '{}' of micro-batch {} not exactly once",
                        side(to_stage), rank, row, value.name, k));
      }
    }
  }

  static int64_t total(const std::vector<RowRange>& ranges) {
    int64_t rows = 0;
    for (RowRange range : ranges) rows += range.size();
    return rows;
  }

  /// Parts of a mean add up to one at each receiver; parts of a sum leave each sender once.
  void check_weights(const ir::Value& value, int to_stage,
                     const std::vector<const Transfer*>& transfers) const {
    const bool mean = value.rows.kind == ir::RowKind::mean;
    std::map<std::pair<int, Rank>, double> weight;
    std::set<std::pair<int, Rank>> at_receivers;
    for (const Transfer* transfer : transfers) {
      check_whole(value, *transfer);
      weight[{transfer->micro_batch, mean ? transfer->to : transfer->from}] += transfer->weight;
      at_receivers.insert({transfer->micro_batch, transfer->to});
    }
    for (const auto& [where, sum] : weight) {
      if (std::abs(sum - 1) < kRoundOff) continue;
      fail_program(fmt::format(
          "the parts of '{}' of micro-batch {} at rank {} have weights that add up to {}",
          value.name, where.first, where.second, sum));
    }
    check_complete(value, to_stage, at_receivers, /*only_first=*/false);
  }

  void check_single(const ir::Value& value, int to_stage,
                    const std::vector<const Transfer*>& transfers) const {
    std::set<std::pair<int, Rank>> received;
    for (const Transfer* transfer : transfers) {
      check_whole(value, *transfer);
      if (transfer->weight != 1 || !received.insert({transfer->micro_batch, transfer->to}).second) {
        fail_program(fmt::format("'{}' of micro-batch {} arrives on rank {} more than once",
                                 value.name, transfer->micro_batch, transfer->to));
      }
    }
    const bool once = to_stage == kUser && value.rows.kind == ir::RowKind::none;
    check_complete(value, to_stage, received, once);
  }

  void check_whole(const ir::Value& value, const Transfer& transfer) const {
    if (!transfer.whole) fail_program(fmt::format("'{}' has no rows, but is cut", value.name));
    if (holders_.rows(transfer.from_stage, transfer.from, transfer.micro_batch).size() == 0) {
      fail_program(fmt::format("rank {} sends '{}' of micro-batch {}, of which it has no rows",
                               transfer.from, value.name, transfer.micro_batch));
    }
  }

  void check_complete(const ir::Value& value, int to_stage,
                      const std::set<std::pair<int, Rank>>& received, bool only_first) const {
    const int micro_batches = only_first ? 1 : static_cast<int>(program_.split.micro_batches);
    for (int k = 0; k < micro_batches; ++k) {
      for (Rank rank : holders_.ranks(to_stage)) {
        if (to_stage != kUser && holders_.rows(to_stage, rank, k).size() == 0) continue;
        if (received.contains({k, rank})) continue;
        fail_program(fmt::format("{} on rank {} never gets '{}' of micro-batch {}", side(to_stage),
                                 rank, value.name, k));
      }
    }
  }

  const Program& program_;
  const ir::Graph& graph_;
  const Holders& holders_;
  std::map<std::pair<ir::ValueId, int>, std::vector<const Transfer*>> arrivals_;
};

}  // namespace

void check_transfers(const Program& program, const ir::Graph& graph, const Holders& holders) {
  TransferChecker(program, graph, holders).check();
}

}  // namespace rannc::plan
