// How good the search over blocks is where the graph has branches, without the exact search of
// small problems (`SearchOptions::exactly`):
//
//   cmake -S . -B build-bench -G Ninja -DRANNC_TORCH=OFF -DRANNC_BENCHMARKS=ON
//   ninja -C build-bench branches_quality
//   build-bench/benchmarks/branches_quality small --problems 300
//   build-bench/benchmarks/branches_quality large --problems 40 --orders 20
//   build-bench/benchmarks/branches_quality cells --problems 40 --anneal 200000
//
// small: two towers, forks, U-nets, encoder-decoders and chains of 9 to 14 nodes on up to 8 ranks;
//        the truth is the exact search, where it is completed.
// large: the same of 20 to 60 nodes on up to 32 ranks; the other side is the best of the searches
//        of the same graph with its nodes in `orders` random topological orders. (The given order
//        is one of those that the search works on.)
// cells: networks of cells of 31 to 64 nodes on 16 ranks with slow links between hosts, planned at
//        all resolutions; the other side is the same as that of large.
//   --anneal N  the other side is what simulated annealing finds then (long_search.h), with so many
//               trials from each arrangement: a minute for 200000
//   --first N   the first seed (default 0)     --verbose   both plans where one is worse
//   --times     no comparison: seed, shape, nanoseconds of the plan and seconds of the search, for
//               comparing two versions of the search
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "partition/dice.h"
#include "planner/branched_problems.h"
#include "planner/long_search.h"
#include "rannc/util/error.h"

namespace {

using namespace rannc;
using benchmarks::Answer;
using benchmarks::Family;
using benchmarks::Problem;
using partition::testing::Dice;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Tally {
  int problems = 0, equal = 0, within = 0, missing = 0, better = 0;
  double excess = 0, worst = 1, seconds = 0, slowest = 0;
};

void print(const std::string& name, const Tally& tally) {
  const double count = std::max(1, tally.problems - tally.missing);
  fmt::print(
      "{:16} {:4} problems: equal {:5.1f} %, within 1 % {:5.1f} %, mean excess {:5.2f} %, worst "
      "{:.3f}, better {:4.1f} %, no plan {}; {:.2f} s each, slowest {:.2f}\n",
      name, tally.problems, 100 * tally.equal / count, 100 * tally.within / count,
      100 * tally.excess / count, tally.worst, 100 * tally.better / count, tally.missing,
      tally.seconds / std::max(1, tally.problems), tally.slowest);
}

std::string text_of(const Problem& problem, const Answer& answer) {
  return answer.ns == kInfinity ? "no plan" : benchmarks::text_of(problem.profile, answer.plan);
}

/// The best of the searches of the same graph in random orders of its nodes.
Answer other_orders(const Problem& problem, uint64_t seed, int orders,
                    const std::vector<int>& resolutions) {
  Dice dice(seed + 1'000'000);
  Answer best;
  for (int k = 0; k < orders; ++k) {
    Problem same = problem;
    same.profile = benchmarks::reordered(problem.profile, dice);
    Answer next = solve(same, {.exactly = false}, resolutions);
    std::map<std::string, uint32_t> number_of;
    for (uint32_t node = 0; node < problem.profile.nodes.size(); ++node) {
      number_of[problem.profile.nodes[node].name] = node;
    }
    const auto renumber = [&](partition::NodePlan& plan) {
      for (std::vector<uint32_t>& nodes : plan.nodes) {
        for (uint32_t& node : nodes) node = number_of.at(same.profile.nodes[node].name);
        std::ranges::sort(nodes);
      }
    };
    renumber(next.plan);
    for (partition::NodePlan& other : next.others) {
      renumber(other);
      best.others.push_back(other);
    }
    if (next.ns < best.ns) {
      best.ns = next.ns;
      best.plan = next.plan;
    }
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  Family family = Family::small;
  bool verbose = false, times = false;
  int64_t trials = 0;
  uint64_t problems = 100, first = 0;
  int orders = 20;
  for (size_t k = 0; k < words.size(); ++k) {
    if (k == 0 && !words[k].starts_with("-")) {
      family = benchmarks::family(words[k]);
    } else if (words[k] == "--verbose") {
      verbose = true;
    } else if (words[k] == "--times") {
      times = true;
    } else if (k + 1 == words.size()) {
      throw ConfigError("'" + words[k] + "': the head of this source lists the options");
    } else if (words[k] == "--problems") {
      problems = std::stoull(words[++k]);
    } else if (words[k] == "--first") {
      first = std::stoull(words[++k]);
    } else if (words[k] == "--orders") {
      orders = std::stoi(words[++k]);
    } else if (words[k] == "--anneal") {
      trials = std::stoll(words[++k]);
    } else {
      throw ConfigError("unknown option " + words[k] + "; the head of this source lists them");
    }
  }
  std::map<std::string, Tally> tallies;
  int unknown = 0, infeasible = 0;
  for (uint64_t seed = first; seed < first + problems; ++seed) {
    const Problem problem = benchmarks::random_problem(seed, family);
    std::vector<int> resolutions{128};
    if (family == Family::cells) resolutions = {16, 48, 128};
    const Answer ours = solve(problem, {.exactly = false}, resolutions);
    if (times) {
      fmt::print("{} {} {:.0f} {:.3f}\n", seed, problem.shape, ours.ns, ours.seconds);
      continue;
    }
    Answer other;
    if (family == Family::small) {
      other = solve(problem, {.exactly = true}, {128});
      if (!other.exact) {
        ++unknown;
        continue;
      }
    } else {
      other = other_orders(problem, seed, orders, resolutions);
      if (trials > 0) {
        Answer both = ours;
        both.others.insert(both.others.end(), other.others.begin(), other.others.end());
        const Answer annealed = anneal(problem, both, trials, seed + 2'000'000);
        if (annealed.ns < other.ns) other = annealed;
      }
    }
    if (ours.ns == kInfinity && other.ns == kInfinity) {
      ++infeasible;
      continue;
    }
    const double ratio = ours.ns / other.ns;
    if (verbose && ratio > 1.001) {
      fmt::print("seed {} ({}, {} nodes, {} x {}): {:.4f}\n  {}\n  {}\n", seed, problem.shape,
                 problem.profile.nodes.size(), problem.cluster.hosts,
                 problem.cluster.devices_per_host, ratio, text_of(problem, ours),
                 text_of(problem, other));
    }
    for (Tally* tally : {&tallies[problem.shape], &tallies["~ all"]}) {
      ++tally->problems;
      tally->seconds += ours.seconds;
      tally->slowest = std::max(tally->slowest, ours.seconds);
      if (ours.ns == kInfinity) {
        ++tally->missing;
        continue;
      }
      tally->equal += ratio <= 1 + 1e-9 && ratio >= 1 - 1e-9;
      tally->within += ratio <= 1.01;
      tally->better += ratio < 1 - 1e-9;
      tally->excess += ratio - 1;
      tally->worst = std::max(tally->worst, ratio);
    }
  }
  for (const auto& [name, tally] : tallies) print(name, tally);
  fmt::print("not completed by the exact search: {}; nothing fits: {}\n", unknown, infeasible);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
