// How far the planner is from the optimum, on random problems that brute force can solve:
//
//   ninja -C build planner_quality && build/tests/core/partition/planner_quality --problems 5000
//
//   --problems N      how many (default 5000)      --first N      the first seed (default 0)
//   --version 2       of the graph and the request (default 1)
//   --interleaved     requests may allow it        --threads N    problems at a time (default 1)
//   --nodes N, --ranks N   at most (8, 8)          --dump FOLDER  writes the files of each problem
//   in
//                     which the planner is worse: graph.json, cluster.toml, request.json,
//                     optimum.json, plan.json
//
// Ends with 0 when the share of equal optima is at least 99.5 %, no ratio is above 1.01, and no
// plan is missing.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "partition/brute_force.h"
#include "partition/random_problem.h"
#include "rannc/partition/evaluate.h"
#include "rannc/partition/planner.h"
#include "rannc/util/error.h"

namespace {

using namespace rannc;
using partition::testing::Optimum;
using partition::testing::Problem;

struct Options {
  uint64_t problems = 5000, first = 0;
  int threads = 1;
  std::string dump;
  partition::testing::ProblemOptions problem;
};

struct Outcome {
  uint64_t seed = 0;
  std::string shape;
  bool feasible = false;  ///< there is a plan
  std::string kind;       ///< of the optimum: schedule and number of stages
  bool missing = false;   ///< the planner found none
  std::string wrong;      ///< an invalid plan, a wrong time, or better than the optimum
  double ratio = 1;       ///< planner's time over the optimum
  double plan_s = 0, brute_s = 0;
};

double seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void dump(const Options& options, const Outcome& outcome, const Problem& problem,
          const plan::Plan& optimum, const plan::Plan& found) {
  const auto folder = std::filesystem::path(options.dump) / std::to_string(outcome.seed);
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
  };
  write("graph.json", cost::to_json(problem.profile));
  write("cluster.toml", cost::to_toml(problem.cluster));
  write("request.json", partition::to_json(problem.request));
  write("optimum.json", plan::to_json(optimum));
  write("plan.json", plan::to_json(found));
}

/// "1 stage", "3 stages", "4 stages interleaved".
std::string kind_of(const plan::Plan& plan) {
  return fmt::format("{} stage{}{}", plan.stages.size(), plan.stages.size() == 1 ? "" : "s",
                     plan.interleave > 1 ? " interleaved" : "");
}

Outcome solve(uint64_t seed, const Options& options) {
  Outcome outcome;
  outcome.seed = seed;
  const Problem problem = partition::testing::random_problem(seed, options.problem);
  outcome.shape = problem.shape;
  auto start = std::chrono::steady_clock::now();
  Optimum optimum =
      partition::testing::brute_force(problem.profile, problem.cluster, problem.request);
  outcome.brute_s = seconds(start);
  outcome.feasible = optimum.feasible;
  optimum.plan.iteration_ns = std::llround(optimum.iteration_ns);
  outcome.kind = kind_of(optimum.plan);

  start = std::chrono::steady_clock::now();
  plan::Plan found;
  try {
    found = partition::make_plan(problem.profile, problem.cluster, problem.request);
  } catch (const ConfigError& error) {
    found.feasible = false;
    found.reason = error.what();
  }
  outcome.plan_s = seconds(start);
  if (!found.feasible) {
    outcome.missing = optimum.feasible;
  } else {
    const auto verdict =
        partition::evaluate(problem.profile, problem.cluster, problem.request, found);
    if (!verdict.problems.empty()) {
      outcome.wrong = "the planner's plan is invalid: " + verdict.problems[0];
    } else if (std::llround(verdict.iteration_ns) != found.iteration_ns) {
      outcome.wrong = fmt::format("the planner says {} ns, the evaluator {}", found.iteration_ns,
                                  verdict.iteration_ns);
    } else if (!optimum.feasible) {
      outcome.wrong = "a plan where brute force found none";
    } else {
      outcome.ratio = verdict.iteration_ns / optimum.iteration_ns;
      if (outcome.ratio < 1 - 1e-9) outcome.wrong = "better than brute force";
    }
  }
  const bool worse = outcome.missing || !outcome.wrong.empty() || outcome.ratio > 1 + 1e-9;
  if (worse && !options.dump.empty()) dump(options, outcome, problem, optimum.plan, found);
  return outcome;
}

Options parse(int argc, char** argv) {
  Options options;
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t k = 0; k < words.size(); ++k) {
    const auto value = [&] {
      if (k + 1 == words.size()) throw ConfigError(words[k] + " needs a value");
      return words[++k];
    };
    if (words[k] == "--problems") {
      options.problems = std::stoull(value());
    } else if (words[k] == "--first") {
      options.first = std::stoull(value());
    } else if (words[k] == "--threads") {
      options.threads = std::stoi(value());
    } else if (words[k] == "--nodes") {
      options.problem.most_nodes = std::stoi(value());
    } else if (words[k] == "--ranks") {
      options.problem.most_ranks = std::stoi(value());
    } else if (words[k] == "--version") {
      options.problem.version = std::stoi(value());
    } else if (words[k] == "--dump") {
      options.dump = value();
    } else if (words[k] == "--interleaved") {
      options.problem.interleaved = true;
    } else {
      throw ConfigError("unknown option " + words[k] + "; the head of this source lists them");
    }
  }
  return options;
}

int report(const std::vector<Outcome>& outcomes, double wall_s) {
  size_t feasible = 0, equal = 0, within = 0, missing = 0, wrong = 0;
  double brute_s = 0, plan_s = 0, slowest_plan_s = 0;
  const Outcome* worst = nullptr;
  std::map<std::string, std::pair<size_t, size_t>> kinds;  // equal of feasible
  for (const Outcome& outcome : outcomes) {
    brute_s += outcome.brute_s;
    plan_s += outcome.plan_s;
    slowest_plan_s = std::max(slowest_plan_s, outcome.plan_s);
    if (!outcome.wrong.empty()) {
      ++wrong;
      fmt::print("seed {}: {} (ratio {:.6f})\n", outcome.seed, outcome.wrong, outcome.ratio);
    }
    if (!outcome.feasible) continue;
    ++feasible;
    auto& shape = kinds[outcome.shape];
    auto& kind = kinds[outcome.kind];
    ++shape.second;
    ++kind.second;
    if (outcome.missing) {
      if (++missing <= 10) fmt::print("seed {}: no plan found, but there is one\n", outcome.seed);
      continue;
    }
    if (worst == nullptr || outcome.ratio > worst->ratio) worst = &outcome;
    if (outcome.ratio <= 1 + 1e-9) {
      ++equal;
      ++shape.first;
      ++kind.first;
    }
    if (outcome.ratio <= 1.01) ++within;
  }
  const auto percent = [&](size_t count, size_t of) {
    return of == 0 ? 100.0 : 100.0 * static_cast<double>(count) / static_cast<double>(of);
  };
  fmt::print("{} problems, {} feasible\n", outcomes.size(), feasible);
  fmt::print("equal to the optimum: {} ({:.2f} %); within 1 %: {} ({:.2f} %)\n", equal,
             percent(equal, feasible), within, percent(within, feasible));
  fmt::print("no plan found where one exists: {}; wrong: {}\n", missing, wrong);
  if (worst != nullptr) {
    fmt::print("worst ratio: {:.4f} (seed {})\n", worst->ratio, worst->seed);
  }
  for (const auto& [name, counts] : kinds) {
    fmt::print("  {:20} {:6.2f} % of {}\n", name, percent(counts.first, counts.second),
               counts.second);
  }
  fmt::print("brute force {:.1f} s, planner {:.1f} s (slowest {:.3f} s), wall {:.1f} s\n", brute_s,
             plan_s, slowest_plan_s, wall_s);
  const bool good = missing == 0 && wrong == 0 && percent(equal, feasible) >= 99.5 &&
                    (worst == nullptr || worst->ratio <= 1.01);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const auto start = std::chrono::steady_clock::now();
  std::vector<Outcome> outcomes(options.problems);
  std::atomic<uint64_t> next{0};
  std::vector<std::jthread> threads;
  for (int k = 0; k < options.threads; ++k) {
    threads.emplace_back([&] {
      for (uint64_t index = next++; index < options.problems; index = next++) {
        outcomes[index] = solve(options.first + index, options);
      }
    });
  }
  threads.clear();
  return report(outcomes, seconds(start));
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
