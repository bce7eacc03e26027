// Plans of a fixed set of problems, for benchmarks/planner/constants.py:
//
//   answers N    N small problems of each version, N / 10 of each branched family, and transformers
//
// Prints JSON: by problem the time of its plan in ns, or null, and processor seconds of planning.
#include <fmt/format.h>

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "partition/random_problem.h"
#include "planner/branched_problems.h"
#include "planner/transformers.h"
#include "rannc/partition/planner.h"
#include "rannc/util/error.h"

namespace {

using namespace rannc;
using benchmarks::Problem;

std::vector<Problem> problems(int small) {
  std::vector<Problem> result;
  const auto add = [&](const std::string& name, Problem problem) {
    problem.shape = name;
    result.push_back(std::move(problem));
  };
  for (int k = 0; k < small; ++k) {
    for (const int version : {1, 2}) {
      const partition::testing::Problem one = partition::testing::random_problem(
          static_cast<uint64_t>(k), {.interleaved = k % 2 == 0, .version = version});
      add(fmt::format("small {} version {}", k, version),
          {one.shape, one.profile, one.cluster, one.request});
    }
  }
  for (const char* family : {"small", "large", "cells"}) {
    for (int k = 0; k < small / 10; ++k) {
      Problem one =
          benchmarks::random_problem(static_cast<uint64_t>(k), benchmarks::family(family));
      if (k % 2 == 1) one.profile.version = 2;  // what nodes save is then their own
      add(fmt::format("branched {} {}", family, k), std::move(one));
    }
  }
  using benchmarks::adam;
  using benchmarks::hosts_of_8;
  using benchmarks::transformer;
  add("40 layers", {"", transformer(38, 1, 4096), hosts_of_8(4), adam(256)});
  add("100 layers", {"", transformer(98, 1, 12288), hosts_of_8(128), adam(1536)});
  add("BERT 5b", {"", transformer(96, 40, 2048), hosts_of_8(4, 32), adam(256)});
  add("BERT 5b, little memory", {"", transformer(96, 40, 2048), hosts_of_8(4, 16), adam(256)});
  add("GPT 175b", {"", transformer(96, 40, 12288), hosts_of_8(128), adam(1536)});
  return result;
}

}  // namespace

int main(int argc, char** argv) try {
  const int small = argc > 1 ? std::stoi(argv[1]) : 200;
  std::string text;
  for (const Problem& problem : problems(small)) {
    const std::clock_t start = std::clock();
    std::string ns = "null";
    try {
      const plan::Plan plan =
          partition::make_plan(problem.profile, problem.cluster, problem.request);
      if (plan.feasible) ns = std::to_string(plan.iteration_ns);
    } catch (const ConfigError&) {
      // Some problems force what cannot be.
    }
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    text += fmt::format("{}\"{}\": [{}, {:.4f}]", text.empty() ? "" : ",\n ", problem.shape, ns,
                        seconds);
  }
  fmt::print("{{{}}}\n", text);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
