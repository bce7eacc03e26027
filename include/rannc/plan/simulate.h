#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rannc/plan/program.h"

namespace rannc::plan {

/// How long each action takes, as plain data.
struct Durations {
  std::vector<double> forward_ns;                ///< [stage]
  std::vector<double> backward_ns;               ///< [stage]
  std::vector<std::vector<double>> transfer_ns;  ///< [from stage][to stage], one micro-batch forward
  std::vector<double> reduce_ns;                 ///< [reduction]
};

struct Span {
  Rank rank = 0;
  int action = 0;  ///< index into Program::actions[rank]
  double begin_ns = 0;
  double end_ns = 0;
};

struct Simulation {
  double end_ns = 0;
  std::vector<Span> spans;              ///< compute and reductions, by rank and time
  std::vector<int> peak_in_flight;      ///< [stage] forwards begun and backwards not yet ended
};

/// Runs a Program on the model of section 5 of docs/planner-files.md. Throws PlanError, naming each
/// blocked rank and what it waits for, when the Program cannot end. O(actions log actions).
[[nodiscard]] Simulation simulate(const Program& program, const Durations& durations);

/// "F0 F1 F2  .  . B0 B1 B2": one line per rank, one column per unit of time.
[[nodiscard]] std::string timeline(const Program& program);

}  // namespace rannc::plan
