#include "plan/lower/routes.h"

#include <fmt/format.h>

#include <algorithm>

#include "rannc/plan/outputs.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// Rows of one micro-batch that a rank holds on one side of a crossing.
struct Part {
  Rank rank;
  RowRange rows;  // of the micro-batch
  int64_t shift;  // from a row of the micro-batch to the row of the share, or of the local batch
  [[nodiscard]] RowRange local(RowRange range) const {
    return {range.begin + shift, range.end + shift};
  }
};
using Side = std::vector<Part>;  // ascending by rows; ranks without rows are left out

/// All sides of one micro-batch: the user's and each stage's.
struct Sides {
  Side user;
  std::vector<Side> stages;
  [[nodiscard]] const Side& of(int stage) const { return stage == kUser ? user : stages[stage]; }
};

Sides sides_of(const Program& program, size_t k) {
  Sides sides;
  const BatchSplit& split = program.split;
  for (size_t rank = 0; rank < split.places.size(); ++rank) {
    const RowRange place = split.places[rank][k];
    if (place.size() == 0) continue;
    sides.user.push_back(
        {static_cast<Rank>(rank), place, split.slices[rank][k].begin - place.begin});
  }
  for (size_t stage = 0; stage < program.shares.size(); ++stage) {
    Side& side = sides.stages.emplace_back();
    const StageMesh mesh = program.mesh(static_cast<int>(stage));
    for (int replica = 0; replica < mesh.replicas(); ++replica) {
      const RowRange share = program.shares[stage][static_cast<size_t>(replica)][k];
      if (share.size() == 0) continue;
      side.push_back({mesh.rank(replica, 0), share, -share.begin});
    }
  }
  return sides;
}

/// Calls visit(from part, to part, common rows) for every pair of parts with rows in common.
/// O(parts).
template <class Visit>
void for_each_overlap(const Side& from, const Side& to, Visit visit) {
  size_t first = 0;
  for (const Part& source : from) {
    while (first < to.size() && to[first].rows.end <= source.rows.begin) ++first;
    for (size_t index = first; index < to.size() && to[index].rows.begin < source.rows.end;
         ++index) {
      visit(source, to[index], overlap(source.rows, to[index].rows));
    }
  }
}

/// Which line of the model made a value.
std::string made_by(const ir::Graph& graph, const ir::Value& value) {
  if (value.kind != ir::ValueKind::result) return "";
  return fmt::format(" ({})", module_place(graph[value.producer]));
}

/// A value of mixed rows is right only where one replica sees the whole batch.
void check_mixed(const ir::Graph& graph, const Crossing& crossing, const Program& program) {
  const ir::Value& value = graph[crossing.value];
  for (int stage : {crossing.from_stage, crossing.to_stage}) {
    if (stage == kUser) continue;
    const int replicas = program.mesh(stage).replicas();
    if (replicas == 1 && program.split.micro_batches == 1) continue;
    throw PlanError(
        fmt::format("the rows of the batch interact in '{}', so stage {} needs the whole batch: 1 "
                    "replica and 1 micro-batch, not {} replicas and {} micro-batches",
                    value.name, stage, replicas, program.split.micro_batches));
  }
  if (crossing.to_stage == kUser && program.split.places.size() > 1 && !can_be_dealt_out(value)) {
    throw PlanError(fmt::format(
        "the output '{}' has a size that depends on the batch, but its rows interact, so no rank's "
        "rows can be told apart in it{}.\n  Return a reduced value, or compute it outside the "
        "model.",
        value.name, made_by(graph, value)));
  }
}

class Router {
 public:
  Router(const ir::Graph& graph, const Program& program) : graph_(graph), program_(program) {}

  void add(const Crossing& crossing, const Sides& sides, int micro_batch) {
    const ir::Value& value = graph_[crossing.value];
    const Side& from = sides.of(crossing.from_stage);
    const Side& to = sides.of(crossing.to_stage);
    const bool to_user = crossing.to_stage == kUser;
    switch (value.rows.kind) {
      case ir::RowKind::apart:
        push_rows(crossing, micro_batch, from, to);
        return;
      case ir::RowKind::mean:
      case ir::RowKind::sum:
        if (to_user) return;
        for_each_overlap(from, to, [&](const Part& source, const Part& target, RowRange rows) {
          const Part& all = value.rows.kind == ir::RowKind::mean ? target : source;
          push_whole(crossing, micro_batch, source, target,
                     static_cast<double>(rows.size()) / static_cast<double>(all.rows.size()));
        });
        return;
      case ir::RowKind::mixed:
        check_mixed(graph_, crossing, program_);
        if (!to_user || !ir::has_row_dimension(value)) break;
        push_rows(crossing, micro_batch, from, to);
        return;
      case ir::RowKind::none:
        if (to_user && micro_batch > 0) return;
        break;
    }
    // The same for every receiver, so one sender will do.
    for (const Part& target : to_user ? every_rank(sides.user) : to) {
      push_whole(crossing, micro_batch, from.front(), target, 1);
    }
  }

  std::vector<Transfer> take() { return std::move(transfers_); }

 private:
  /// Ranks without rows get outputs that do not depend on the rows, too.
  [[nodiscard]] Side every_rank(const Side& with_rows) const {
    Side all;
    for (int rank = 0; rank < static_cast<int>(program_.split.places.size()); ++rank) {
      all.push_back({rank, {0, 0}, 0});
    }
    for (const Part& part : with_rows) all[part.rank] = part;
    return all;
  }

  void push_rows(const Crossing& crossing, int micro_batch, const Side& from, const Side& to) {
    for_each_overlap(from, to, [&](const Part& source, const Part& target, RowRange rows) {
      push(crossing, micro_batch, source, target, rows, rows);
    });
  }

  void push(const Crossing& crossing, int micro_batch, const Part& source, const Part& target,
            RowRange source_rows, RowRange target_rows) {
    const ir::Value& value = graph_[crossing.value];
    const bool never_comes_back =
        crossing.to_stage == kUser && backward_comes_first(program_.schedule);
    transfers_.push_back({.value = crossing.value,
                          .from_stage = crossing.from_stage,
                          .to_stage = crossing.to_stage,
                          .micro_batch = micro_batch,
                          .from = source.rank,
                          .to = target.rank,
                          .source = source.local(source_rows),
                          .target = target.local(target_rows),
                          .grad = program_.training && !never_comes_back && value.requires_grad &&
                                  ir::is_floating(value.dtype)});
  }

  void push_whole(const Crossing& crossing, int micro_batch, const Part& source, const Part& target,
                  double weight) {
    push(crossing, micro_batch, source, target, source.rows, target.rows);
    transfers_.back().whole = true;
    transfers_.back().weight = weight;
  }

  const ir::Graph& graph_;
  const Program& program_;
  std::vector<Transfer> transfers_;
};

}  // namespace

std::vector<Transfer> routes(const ir::Graph& graph, const std::vector<Crossing>& crossings,
                             const Program& program) {
  Router router(graph, program);
  for (size_t k = 0; k < program.split.micro_rows.size(); ++k) {
    const Sides sides = sides_of(program, k);
    for (const Crossing& crossing : crossings) router.add(crossing, sides, static_cast<int>(k));
  }
  return router.take();
}

}  // namespace rannc::plan
