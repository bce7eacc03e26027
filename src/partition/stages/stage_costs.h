#pragma once

#include <cstdint>
#include <vector>

#include "partition/problem/stage_account.h"
#include "partition/stages/range_costs.h"
#include "rannc/cost/cluster.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// One stage as the closed form sees it: the blocks between two borders on the `replicas` ranks
/// from `first_rank`.
struct StageChoice {
  int first = 0;
  int last = 0;
  int replicas = 1;
  int first_rank = 0;
  bool recompute = false;
  friend bool operator==(const StageChoice&, const StageChoice&) = default;
};

/// Time of a stage, per micro-batch unless said otherwise, at the largest share of its replicas.
struct StageTime {
  double forward_ns = 0;    ///< compute, and half of each transfer that enters or leaves
  double backward_ns = 0;   ///< likewise, without recompute
  double recompute_ns = 0;  ///< what recompute adds: the forward's compute
  double compute_ns = 0;    ///< forward and backward compute, without recompute
  double transfer_ns = 0;   ///< the longest of its transfers
  double reduce_ns = 0;  ///< per iteration: what is left of the reduction after the last backward

  /// Shortest time between the starts of two micro-batches.
  [[nodiscard]] double period_ns(bool recompute) const {
    const double busy = compute_ns + (recompute ? recompute_ns : 0.0);
    return busy > transfer_ns ? busy : transfer_ns;
  }
};

/// Memory of a stage on each of its ranks, by kind.
struct StageMemory {
  double param_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  double activation_bytes = 0, buffer_bytes = 0, workspace_bytes = 0;
  [[nodiscard]] double peak_bytes() const {
    return param_bytes + gradient_bytes + optimizer_bytes + activation_bytes + buffer_bytes +
           workspace_bytes;
  }
};

/// Most micro-batches in flight that memory allows; 0: not even one.
struct InFlight {
  int64_t plain = 0;
  int64_t recompute = 0;  ///< not worked out where `plain` is all of them
};

/// The links that a stage needs, and how fast it is, from where its ranks lie: the class of a
/// transfer is "between hosts" when the neighbouring rank and the far end of the stage are on
/// different hosts.
struct LinkClasses {
  bool in_inter = false;
  bool out_inter = false;
  bool ring_inter = false;
  double slowdown = 1;  ///< how many times the graph's costs it takes there
  [[nodiscard]] int index() const { return in_inter + 2 * out_inter + 4 * ring_inter; }
};

/// How the search sees the cluster: `columns` equal parts side by side, every stage on the same
/// places of each, so that replicas lie in different columns; inside a column `unit` ranks move
/// together. Replicas and ranks of a StageChoice count in steps of columns * unit ranks.
struct Grid {
  int columns = 1;
  int unit = 1;
  [[nodiscard]] int step() const { return columns * unit; }
  friend bool operator==(const Grid&, const Grid&) = default;
};

/// Costs of stages for one number of micro-batches. Copies nothing; what it is made from must live.
/// `figure`: of version 2's account, whether stages hold at least what it says, or at most.
class StageCosts {
 public:
  using Figure = RangeCosts::Figure;
  StageCosts(const RangeCosts& ranges, const cost::Cluster& cluster, const Request& request,
             int64_t micro_batches, Grid grid = {}, Figure figure = Figure::least);

  int blocks() const { return ranges_.blocks(); }
  /// Between which borders the stages lie (range_costs.h).
  const RangeCosts& ranges() const { return ranges_; }
  /// Ranks, replicas: in steps of the grid.
  int ranks() const { return cluster_.ranks() / grid_.step(); }
  const Grid& grid() const { return grid_; }
  int hosts() const { return cluster_.hosts; }
  int64_t micro_batches() const { return micro_batches_; }
  /// No replica may be without a row: micro_batches * replicas <= global_batch.
  int max_replicas() const { return max_replicas_; }
  Recompute recompute() const { return request_.recompute; }
  /// Largest share of a micro-batch.
  int64_t rows(int replicas) const;

  /// With many ranks, only numbers of replicas count whose share is smaller than that of one
  /// replica less: the others cost reduction time and save no compute. Where replicas share the
  /// optimizer's state they save memory, and where they are forced there is no choice.
  bool skips(int replicas) const {
    return ranks() > kFewRanks && replicas > 1 && rows(replicas) == rows(replicas - 1) &&
           !request_.shard_optimizer && !request_.force.replicas;
  }
  /// With more ranks (or units of ranks), numbers of replicas that leave the largest share as it is
  /// are skipped.
  /// tuned by: `planner_bench` (the time).
  /// without it: the closed form weighs every number of replicas, which takes several times as long
  /// for a thousand ranks.
  static constexpr int kFewRanks = 32;

  LinkClasses classes(int first_rank, int replicas) const;
  /// On the fastest hosts.
  double least_slowdown() const { return 1 / cluster_.fastest(); }
  /// Forward and backward compute there; never falls when `last` rises.
  double compute_ns(int first, int last, int replicas) const {
    return tables_[static_cast<size_t>(replicas - 1)]->compute_ns(first, last) * least_slowdown_;
  }
  StageTime time(int first, int last, int replicas, const LinkClasses& classes) const;
  /// What ranges from `first` on hold, which the following ask for.
  RangeCosts::Walk walk(int first, int replicas) const {
    return {*tables_[static_cast<size_t>(replicas - 1)], first, figure_};
  }
  InFlight in_flight(int first, int last, int replicas, const RangeCosts::Held& held) const;
  /// A stage holds at least this; never falls when the range grows.
  double least_bytes(int first, int last, int replicas, const RangeCosts::Held& held) const;
  /// Section 6 of docs/planner-files.md, with `in_flight` micro-batches held, or section 7: this or
  /// more, by Figure::most this or less.
  StageMemory memory(int first, int last, int replicas, bool recompute, int64_t in_flight,
                     const RangeCosts::Held& held) const;
  StageMemory memory(int first, int last, int replicas, bool recompute, int64_t in_flight) const {
    return memory(first, last, replicas, recompute, in_flight, walk(first, replicas).to(last));
  }
  double peak_bytes(int first, int last, int replicas, bool recompute, int64_t in_flight,
                    const RangeCosts::Held& held) const;
  double peak_bytes(int first, int last, int replicas, bool recompute, int64_t in_flight) const {
    return peak_bytes(first, last, replicas, recompute, in_flight, walk(first, replicas).to(last));
  }
  double available_bytes() const { return available_bytes_; }

 private:
  StageAccount account(int first, int last, int replicas, const RangeCosts::Held& held) const;
  double optimizer_bytes(int first, int last, int replicas) const;
  double transfer(double bytes, int replicas, bool inter) const;
  double ring(double bytes, int ranks, bool inter) const;
  double own_ring(double bytes, int replicas, bool inter) const;

  const RangeCosts& ranges_;
  const cost::Cluster& cluster_;
  const Request& request_;
  int64_t micro_batches_;
  Grid grid_;
  Figure figure_;
  int max_replicas_;
  double available_bytes_;
  double least_slowdown_ = least_slowdown();
  std::vector<const RangeCosts::Table*> tables_;  // per replicas - 1
};

}  // namespace rannc::partition
