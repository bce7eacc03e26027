#pragma once

#include <cstdint>

#include "planner/branched_problems.h"

namespace rannc::benchmarks {

/// The best plan that simulated annealing finds from those in `answer`, and from its own best
/// again: `trials` random changes of single nodes, parts of stages, ranks, places, counts and
/// stages from each of them. Minutes where the planner takes a second; not above `answer.ns`.
[[nodiscard]] Answer anneal(const Problem& problem, Answer answer, int64_t trials, uint64_t seed);

}  // namespace rannc::benchmarks
