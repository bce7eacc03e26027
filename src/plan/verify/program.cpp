#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "plan/verify/program_checks.h"
#include "rannc/plan/outputs.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// Slices are consecutive, and micro-batches are their concatenation in rank order.
void check_split(const BatchSplit& split) {
  const auto micro_batches = static_cast<size_t>(split.micro_batches);
  if (split.micro_rows.size() != micro_batches || split.slices.size() != split.local_rows.size() ||
      split.places.size() != split.local_rows.size()) {
    fail_program("the batch split has the wrong numbers of ranks or micro-batches");
  }
  std::vector<int64_t> filled(micro_batches, 0);
  for (size_t rank = 0; rank < split.local_rows.size(); ++rank) {
    if (split.slices[rank].size() != micro_batches || split.places[rank].size() != micro_batches) {
      fail_program(fmt::format("rank {} does not have {} slices", rank, micro_batches));
    }
    int64_t row = 0;
    for (size_t k = 0; k < micro_batches; ++k) {
      const RowRange slice = split.slices[rank][k];
      const RowRange place = split.places[rank][k];
      if (slice.begin != row || slice.end < slice.begin || place.begin != filled[k] ||
          place.size() != slice.size()) {
        fail_program(fmt::format("slice {} of rank {} does not follow the one before", k, rank));
      }
      row = slice.end;
      filled[k] = place.end;
    }
    if (row != split.local_rows[rank]) {
      fail_program(fmt::format("the slices of rank {} hold {} of its {} rows", rank, row,
                               split.local_rows[rank]));
    }
  }
  if (filled != split.micro_rows)
    fail_program("the slices do not add up to the rows of the micro-batches");
}

void check_shares(const Program& program) {
  if (program.shares.size() != program.stage_ranks.size()) fail_program("a stage has no shares");
  for (size_t stage = 0; stage < program.shares.size(); ++stage) {
    const auto& shares = program.shares[stage];
    if (shares.size() != program.stage_ranks[stage].size()) {
      fail_program(fmt::format("stage {} has {} shares for {} ranks", stage, shares.size(),
                               program.stage_ranks[stage].size()));
    }
    for (size_t k = 0; k < program.split.micro_rows.size(); ++k) {
      int64_t row = 0;
      for (const auto& share : shares) {
        if (share.at(k).begin != row || share[k].end < row) {
          fail_program(fmt::format("the shares of stage {} of micro-batch {} leave a gap at row {}",
                                   stage, k, row));
        }
        row = share[k].end;
      }
      if (row != program.split.micro_rows[k]) {
        fail_program(fmt::format("the shares of stage {} hold {} of the {} rows of micro-batch {}",
                                 stage, row, program.split.micro_rows[k], k));
      }
    }
  }
}

/// The user gets every output that several ranks can have; but where backward comes first, perhaps
/// only the loss.
void check_outputs(const Program& program, const ir::Graph& graph) {
  const std::set<ir::ValueId> all(graph.outputs.begin(), graph.outputs.end());
  const std::set<ir::ValueId> returned(program.outputs.begin(), program.outputs.end());
  if (!std::ranges::equal(returned, program.outputs) || !std::ranges::includes(all, returned)) {
    fail_program("its outputs are not some of the graph's, ascending, each once");
  }
  if (program.schedule == Schedule::gpipe || !program.training) {
    for (ir::ValueId output : all) {
      const bool may_stay = program.ranks() > 1 && !can_be_dealt_out(graph[output]);
      if (!returned.contains(output) && !may_stay) {
        fail_program("an output of the graph is not returned");
      }
    }
    return;
  }
  const std::optional<ir::ValueId> loss = loss_of(graph);
  if (!loss || !returned.contains(*loss)) {
    fail_program("backward starts from the loss, but its outputs do not hold one");
  }
}

void check_reductions(const Program& program, const ir::Graph& graph) {
  std::set<ir::ValueId> reduced;
  for (size_t index = 0; index < program.reductions.size(); ++index) {
    const Reduction& reduction = program.reductions[index];
    std::set<Rank> ranks;
    for (int stage : reduction.stages) {
      if (stage < 0 || stage >= program.stages()) {
        fail_program(fmt::format("reduction {} is of stage {}", index, stage));
      }
      ranks.insert(program.stage_ranks[stage].begin(), program.stage_ranks[stage].end());
    }
    const std::set<Rank> all(reduction.ranks.begin(), reduction.ranks.end());
    if (all.size() < 2 || reduction.ranks != std::vector<Rank>(all.begin(), all.end()) ||
        !std::ranges::includes(all, ranks)) {
      fail_program(fmt::format("reduction {} is not over the ranks of its stages", index));
    }
    for (ir::ValueId parameter : reduction.parameters) {
      const ir::Value& value = graph[parameter];
      if (value.kind != ir::ValueKind::parameter || !value.requires_grad) {
        fail_program(fmt::format("'{}' is reduced, but has no gradient", value.name));
      }
      if (!reduced.insert(parameter).second) {
        fail_program(fmt::format("'{}' is reduced twice", value.name));
      }
    }
  }
  if (!program.training && !reduced.empty()) fail_program("gradients are reduced without training");
}

}  // namespace

void fail_program(const std::string& why) { throw PlanError("the program is wrong: " + why); }

Holders::Holders(const Program& program) : program_(program) {
  for (size_t stage = 0; stage < program.stage_ranks.size(); ++stage) {
    for (size_t replica = 0; replica < program.stage_ranks[stage].size(); ++replica) {
      const Rank rank = program.stage_ranks[stage][replica];
      if (rank < 0 || rank >= program.ranks()) {
        fail_program(fmt::format("stage {} runs on rank {}, which does not exist", stage, rank));
      }
      replica_[{static_cast<int>(stage), rank}] = replica;
    }
  }
}

RowRange Holders::rows(int stage, Rank rank, int k) const {
  if (stage == kUser) return program_.split.places[rank][k];
  return program_.shares[stage][replica_.at({stage, rank})][k];
}

int64_t Holders::first_local_row(int stage, Rank rank, int k) const {
  return stage == kUser ? program_.split.slices[rank][k].begin : 0;
}

std::vector<Rank> Holders::ranks(int stage) const {
  if (stage != kUser) return program_.stage_ranks[stage];
  std::vector<Rank> all;
  for (Rank rank = 0; rank < program_.ranks(); ++rank) all.push_back(rank);
  return all;
}

void verify(const Program& program, const ir::Graph& graph) {
  if (program.split.local_rows.size() != program.actions.size()) {
    fail_program(fmt::format("{} ranks have rows, {} have orders", program.split.local_rows.size(),
                             program.actions.size()));
  }
  check_split(program.split);
  check_shares(program);
  check_outputs(program, graph);
  const Holders holders(program);
  check_transfers(program, graph, holders);
  check_reductions(program, graph);
  check_orders(program, graph, holders);
  check_communications(program, graph);
  check_rendezvous(program, graph);
}

}  // namespace rannc::plan
