#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rannc/plan/program.h"

// The parts of verify(Program). They share no code with lower().
namespace rannc::plan {

[[noreturn]] void fail_program(const std::string& why);

/// Answers "which rows of micro-batch k does this rank hold on this side".
class Holders {
 public:
  /// Throws PlanError for a stage on a rank that does not exist.
  explicit Holders(const Program& program);

  [[nodiscard]] bool runs(int stage, Rank rank) const { return replica_.contains({stage, rank}); }
  [[nodiscard]] RowRange rows(int stage, Rank rank, int k) const;
  /// A row of the tensor that the rank has at hand, which is its share, or its local batch.
  [[nodiscard]] int64_t first_local_row(int stage, Rank rank, int k) const;
  [[nodiscard]] std::vector<Rank> ranks(int stage) const;

 private:
  const Program& program_;
  std::map<std::pair<int, Rank>, size_t> replica_;
};

/// Every row of every boundary value arrives exactly once and in order.
void check_transfers(const Program& program, const ir::Graph& graph, const Holders& holders);

/// Every rank does its part of everything once, when what it needs is there.
void check_orders(const Program& program, const ir::Graph& graph, const Holders& holders);

/// The ranks that a communication needs.
[[nodiscard]] std::vector<Rank> ranks_of(const Program& program,
                                         const Communication& communication);

/// Every communication has its place in the order and is issued once on each of its ranks.
void check_communications(const Program& program, const ir::Graph& graph);

/// The Program ends where communication blocks; see Rendezvous.
void check_rendezvous(const Program& program, const ir::Graph& graph);

}  // namespace rannc::plan
