// What each part of the planner's search gains: plans of many problems with one part left out
// (partition/problem/heuristics.h), beside those of the whole search.
//
//   cmake -S . -B build-bench -G Ninja -DRANNC_TORCH=OFF -DRANNC_BENCHMARKS=ON
//   ninja -C build-bench ablations
//   build-bench/benchmarks/ablations quality small large cells huge
//   build-bench/benchmarks/ablations graphs --graphs benchmarks/data
//
// quality: the small problems of planner_quality          small, large, cells: branched_problems.h
// huge:    the transformers of planner_bench
// graphs:  the graph profiles NAME.json of a folder (benchmarks/graphs/write.py), each on 4, 32 and
//          256 devices of 80 GB and on 32 of 24 GB
//   --problems N  of quality (default 500) and of the others (N / 10)     --without PART  only this
//   --first N     the first seed (default 0)                              --verbose       each loss
//   --inexact     without the exact search in any case, which else makes up for the other parts
//
// Of each part: how much longer the plans are without it, on average and at most, and how many are
// longer by more than 1 %; how many have no plan; and what planning takes without it.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "partition/find_plan.h"
#include "partition/random_problem.h"
#include "planner/branched_problems.h"
#include "planner/transformers.h"
#include "rannc/util/error.h"

namespace {

using namespace rannc;
using benchmarks::Problem;
using partition::Heuristics;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Part {
  std::string name;
  bool Heuristics::*on;
};
const std::vector<Part> kParts{
    {"coarse", &Heuristics::coarse},
    {"zoom", &Heuristics::zoom},
    {"exact", &Heuristics::exact},
    {"down_sets", &Heuristics::down_sets},
    {"other_orders", &Heuristics::other_orders},
    {"other_layouts", &Heuristics::other_layouts},
    {"refine", &Heuristics::refine},
    {"anneal", &Heuristics::anneal},
    {"inner_blocks", &Heuristics::inner_blocks},
    {"parts", &Heuristics::parts},
    {"places", &Heuristics::places},
    {"stage_order", &Heuristics::stage_order},
};

struct Options {
  std::vector<std::string> families;
  int problems = 500;
  uint64_t first = 0;
  std::string graphs, without;
  bool verbose = false;
  Heuristics whole = {};
};

std::vector<Problem> huge() {
  using benchmarks::adam;
  using benchmarks::hosts_of_8;
  using benchmarks::transformer;
  return {{"40 layers", transformer(38, 1, 4096), hosts_of_8(4), adam(256)},
          {"100 layers", transformer(98, 1, 12288), hosts_of_8(128), adam(1536)},
          {"BERT 5b", transformer(96, 40, 2048), hosts_of_8(4, 32), adam(256)},
          {"GPT 175b", transformer(96, 40, 12288), hosts_of_8(128), adam(1536)},
          {"GPT 1t", transformer(128, 40, 25600), hosts_of_8(512), adam(4096)}};
}

std::vector<Problem> of_folder(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<Problem> result;
  for (const std::filesystem::path& file : files) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    const cost::GraphProfile profile = cost::graph_profile_from_json(text.str());
    for (const auto& [hosts, gb] : {std::pair{1, 80.0}, {4, 80.0}, {4, 24.0}, {32, 80.0}}) {
      cost::Cluster cluster = benchmarks::hosts_of_8(hosts, gb);
      if (hosts == 1) cluster.devices_per_host = 4;
      result.push_back(
          {fmt::format("{} on {} x {:.0f} GB", file.stem().string(), cluster.ranks(), gb), profile,
           cluster, benchmarks::adam(hosts > 4 ? 1024 : 256)});
    }
  }
  return result;
}

std::vector<Problem> problems_of(const std::string& family, const Options& options) {
  if (family == "huge") return huge();
  if (family == "graphs") return of_folder(options.graphs);
  std::vector<Problem> result;
  const bool quality = family == "quality";
  const int count = quality ? options.problems : options.problems / 10;
  for (int k = 0; k < count; ++k) {
    const uint64_t seed = options.first + static_cast<uint64_t>(k);
    if (!quality) {
      result.push_back(benchmarks::random_problem(seed, benchmarks::family(family)));
      continue;
    }
    const partition::testing::Problem problem = partition::testing::random_problem(seed);
    result.push_back({problem.shape, problem.profile, problem.cluster, problem.request});
  }
  return result;
}

struct Answer {
  double ns = kInfinity;
  double seconds = 0;
};

Answer solve(const Problem& problem, const Heuristics& with) {
  Answer answer;
  const std::clock_t start = std::clock();  // of the processor: the machine may do something else
  try {
    const plan::Plan plan =
        find_plan(problem.profile, problem.cluster, problem.request, {}, with).plan;
    if (plan.feasible) answer.ns = static_cast<double>(plan.iteration_ns);
  } catch (const ConfigError&) {
    // Some problems force what cannot be: no plan, with and without a part.
  }
  answer.seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return answer;
}

void leave_out(const Part& part, const std::vector<Problem>& problems,
               const std::vector<Answer>& whole, const Options& options) {
  Heuristics with = options.whole;
  with.*part.on = false;
  double sum = 0, most = 0, seconds = 0, whole_s = 0;
  int compared = 0, longer = 0, shorter = 0, missing = 0;
  std::string worst;
  for (size_t k = 0; k < problems.size(); ++k) {
    const Answer answer = solve(problems[k], with);
    seconds += answer.seconds;
    whole_s += whole[k].seconds;
    if (whole[k].ns == kInfinity) continue;
    if (answer.ns == kInfinity) {
      ++missing;
      continue;
    }
    const double loss = answer.ns / whole[k].ns - 1;
    ++compared;
    sum += loss;
    longer += loss > 0.01;
    shorter += loss < -0.001;
    if (loss > most) {
      most = loss;
      worst = problems[k].shape;
    }
    if (options.verbose && loss > 0.001) {
      fmt::print("    {} ({}): {:.2f} %\n", problems[k].shape, k, 100 * loss);
    }
  }
  fmt::print(
      "  without {:14} {:6.2f} % longer on average, {:6.2f} % at most ({}), {} of {} by more than "
      "1 %, {} shorter, {} without a plan; planning takes {:.2f} x\n",
      part.name, 100 * sum / std::max(1, compared), 100 * most, worst, longer, compared, shorter,
      missing, seconds / whole_s);
  std::fflush(stdout);
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (size_t k = 0; k < words.size(); ++k) {
    const auto value = [&] {
      if (k + 1 == words.size()) throw ConfigError(words[k] + " needs a value");
      return words[++k];
    };
    if (words[k] == "--problems") {
      options.problems = std::stoi(value());
    } else if (words[k] == "--first") {
      options.first = std::stoull(value());
    } else if (words[k] == "--graphs") {
      options.graphs = value();
    } else if (words[k] == "--without") {
      options.without = value();
    } else if (words[k] == "--inexact") {
      options.whole.exact = false;
    } else if (words[k] == "--verbose") {
      options.verbose = true;
    } else {
      options.families.push_back(words[k]);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse({argv + 1, argv + argc});
  for (const std::string& family : options.families) {
    const std::vector<Problem> problems = problems_of(family, options);
    std::vector<Answer> whole;
    double seconds = 0;
    for (const Problem& problem : problems) {
      whole.push_back(solve(problem, options.whole));
      seconds += whole.back().seconds;
    }
    fmt::print("{}: {} problems, {:.1f} s\n", family, problems.size(), seconds);
    for (const Part& part : kParts) {
      if (!options.without.empty() && options.without != part.name) continue;
      leave_out(part, problems, whole, options);
    }
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
