#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rannc/plan/program.h"

namespace rannc::plan {

/// How long each action takes, as plain data.
struct Durations {
  std::vector<double> forward_ns;   ///< [stage]
  std::vector<double> backward_ns;  ///< [stage]
  /// [from stage][to stage], one micro-batch forward.
  std::vector<std::vector<double>> transfer_ns;
  /// Its gradients, by the same stages; empty: as transfer_ns.
  std::vector<std::vector<double>> transfer_back_ns;
  std::vector<double> reduce_ns;  ///< [reduction]

  // What follows is of simulate_in_order() alone; empty: as above.
  std::vector<std::vector<double>> computed_ns = {};  ///< [rank][action] of those that compute
  /// [rank][action] that the host takes to issue it. It waits for no device and for no message, and
  /// a device computes nothing before it is issued.
  std::vector<std::vector<double>> issued_ns = {};
  std::array<std::vector<double>, 2> message_ns = {};  ///< [direction][transfer]
};

struct Span {
  Rank rank = 0;
  int action = 0;  ///< index into Program::actions[rank]
  double begin_ns = 0;
  double end_ns = 0;
};

struct Simulation {
  double end_ns = 0;
  std::vector<Span> spans;  ///< compute and reductions, by rank and time
  /// [stage] micro-batches begun and not yet released, on one rank.
  std::vector<int> peak_in_flight;
  std::vector<double> ends_ns;  ///< [rank] of all that it does; of simulate_in_order()
};

/// Runs a Program on the model of section 5 of docs/planner-files.md, rank by rank: with equal
/// shares it ends at that section's time. What a rank sends of one micro-batch to one stage is one
/// transfer; what goes to or from the user takes no time; a reduction starts when the last
/// backwards of its stages and the reductions before it on its ranks have ended. Throws PlanError,
/// naming each blocked rank and what it waits for, when the Program cannot end. O(actions log
/// actions).
[[nodiscard]] Simulation simulate(const Program& program, const Durations& durations);

/// The same where messages have no tags and block, as under NCCL: ranks issue communications at
/// their places in Program::order. One begins when all its ends have come to it, what it needs is
/// there (rows that are sent; memory for what is received, which a rank takes as the computation
/// before begins; gradients of a bucket), and what came before it in its line has ended: a rank has
/// a line for each direction of transfers, and one for each set of ranks that sum. Messages of one
/// micro-batch between two stages share its duration, buckets by their bytes that of their
/// reduction, and sums are waited for at the end of a phase. Never earlier than simulate() with
/// messages that take no time. Throws PlanError when a rank needs something before its place in the
/// order. O(actions log actions).
[[nodiscard]] Simulation simulate_in_order(const Program& program, const Durations& durations);

/// "F0 F1 F2  .  . B0 B1 B2": one line per rank, one column per unit of time; every forward and
/// backward takes one, messages none. A rank with several stages shows them, too: "F2.1" is the
/// forward of micro-batch 2 in stage 1.
[[nodiscard]] std::string timeline(const Program& program);

}  // namespace rannc::plan
