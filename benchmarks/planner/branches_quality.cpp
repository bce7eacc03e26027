// How good the search over blocks is where the graph has branches, without the exact search of
// small problems (`SearchOptions::exactly`), on random two towers, forks, U-nets and
// encoder-decoders:
//
//   cmake -S . -B build-bench -G Ninja -DRANNC_TORCH=OFF -DRANNC_BENCHMARKS=ON
//   ninja -C build-bench branches_quality
//   build-bench/benchmarks/branches_quality small --problems 300
//   build-bench/benchmarks/branches_quality large --problems 40 --orders 20
//
// small: 9 to 14 nodes on up to 8 ranks; the truth is the exact search, where it is completed.
// large: 20 to 60 nodes on up to 32 ranks; the other side is the best of the searches of the same
// graph
//        with its nodes in `orders` random topological orders. (The given order is one of those
//        that the search works on.)
//   --first N   the first seed (default 0)     --verbose   both plans where one is worse
//   --times     no comparison: seed, shape, nanoseconds of the plan and seconds of the search, for
//               comparing two versions of the search
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "partition/dice.h"
#include "partition/problem/search_space.h"
#include "partition/search/search_at_resolution.h"
#include "rannc/partition/planner.h"
#include "rannc/util/error.h"

namespace {

using namespace rannc;
using partition::Request;
using partition::testing::Dice;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  std::string shape;
  cost::GraphProfile profile;
  cost::Cluster cluster;
  Request request;
};

using Edges = std::vector<std::vector<uint32_t>>;  // [node] what it reads

/// Adds a chain of `length` nodes behind `from` (none: behind the input); its last node.
uint32_t add_chain(Edges& edges, std::vector<uint32_t> from, int length) {
  for (int k = 0; k < length; ++k) {
    edges.push_back(from);
    from = {static_cast<uint32_t>(edges.size() - 1)};
  }
  return from.front();
}

Edges two_towers(Dice& dice, int nodes) {
  Edges edges;
  const int head = std::max(1, nodes / 8), first = dice.draw(nodes / 4, (nodes - head) / 2);
  const uint32_t a = add_chain(edges, {}, first);
  const uint32_t b = add_chain(edges, {}, nodes - head - first);
  add_chain(edges, {a, b}, head);
  return edges;
}

/// One or two forks behind each other, of 2 to `most` branches.
Edges forks(Dice& dice, int nodes, int most) {
  Edges edges;
  uint32_t at = add_chain(edges, {}, 1);
  for (int parts = nodes > 12 ? dice.draw(1, 2) : 1, part = 0; part < parts; ++part) {
    int left = nodes * (part + 1) / parts - static_cast<int>(edges.size()) - 1;
    const int width = dice.draw(2, std::min(most, left));
    std::vector<uint32_t> ends;
    for (int branch = 0; branch < width; ++branch) {
      const int others = width - branch - 1;
      const int length =
          others == 0 ? left : dice.draw(1, std::max(1, std::min(left - others, 2 * left / width)));
      left -= length;
      ends.push_back(add_chain(edges, {at}, length));
    }
    at = add_chain(edges, ends, 1);
  }
  return edges;
}

/// Down and up, with a chain of its own around each level.
Edges u_net(Dice& dice, int nodes) {
  Edges edges;
  const int levels = std::max(2, nodes / 4);
  std::vector<uint32_t> down{add_chain(edges, {}, 1)};
  for (int k = 1; k < levels; ++k) down.push_back(add_chain(edges, {down.back()}, 1));
  uint32_t at = add_chain(edges, {down.back()}, 1);
  for (int k = levels - 1; k >= 0; --k) {
    const auto left = nodes - static_cast<int>(edges.size()) - (k + 1);
    uint32_t skip = down[static_cast<size_t>(k)];
    if (left > 0) skip = add_chain(edges, {skip}, std::min(left, dice.draw(1, 2)));
    at = add_chain(edges, {at, skip}, 1);
  }
  return edges;
}

/// A decoder whose first part does not need the encoder, and whose other nodes all read its end.
Edges encoder_decoder(Dice& dice, int nodes) {
  Edges edges;
  const int before = dice.draw(nodes / 6, nodes / 3);
  const int behind = dice.draw(2, nodes / 4);
  const uint32_t memory = add_chain(edges, {}, nodes - before - behind);
  uint32_t at = add_chain(edges, {}, before);
  for (int k = 0; k < behind; ++k) at = add_chain(edges, {at, memory}, 1);
  return edges;
}

Problem random_problem(uint64_t seed, bool large) {
  Dice dice(seed);
  Problem problem;
  const int nodes = large ? dice.draw(20, 60) : dice.draw(9, 14);
  Edges edges;
  switch (dice.draw(0, 4)) {
    case 0:
      problem.shape = "two towers";
      edges = two_towers(dice, nodes);
      break;
    case 1:
      problem.shape = "forks";
      edges = forks(dice, nodes, large ? 3 : 4);
      break;
    case 2:
      problem.shape = "chain";
      add_chain(edges, {}, nodes);
      break;
    case 3:
      problem.shape = "u-net";
      edges = u_net(dice, large ? nodes / 2 : nodes);
      break;
    default:
      problem.shape = "encoder-decoder";
      edges = encoder_decoder(dice, nodes);
  }
  cost::GraphProfile& profile = problem.profile;
  profile.name = problem.shape;
  profile.rows = {1, 8};
  profile.inputs = {{.name = "x", .size = {1000, 0}}};
  const double uneven = dice.real(0, 1.2), value_bytes = dice.magnitude(300, 30000);
  const double param_bytes = large ? dice.magnitude(1e4, 1e7) : dice.magnitude(1e3, 1e6),
               saved = dice.magnitude(1, 8);
  double params = 0, activations = 0;
  for (size_t k = 0; k < edges.size(); ++k) {
    cost::ProfileNode& node = profile.nodes.emplace_back();
    node.name = "n" + std::to_string(k);
    node.op = "op";
    if (edges[k].empty()) node.inputs = {{true, 0, 0}};
    for (const uint32_t from : edges[k]) node.inputs.push_back({false, from, 0});
    const double bytes = std::floor(value_bytes * dice.magnitude(0.3, 3));
    node.outputs = {{.size = {bytes, 0}, .grad = true}};
    const double base = dice.real(0, 2000), slope = 2000 * std::exp(dice.real(-uneven, uneven));
    node.forward_ns = {std::floor(base + slope), std::floor(base + 8 * slope)};
    node.backward_ns = {std::floor(base + 2 * slope), std::floor(base + 16 * slope)};
    node.saved_bytes = {std::floor(saved * bytes), 8 * std::floor(saved * bytes)};
    node.workspace_bytes = {0, 0};
    node.params = {static_cast<uint32_t>(k)};
    profile.params.push_back(
        {.id = "p" + std::to_string(k), .bytes = std::floor(param_bytes * dice.magnitude(0.2, 5))});
    params += profile.params.back().bytes;
    activations += node.saved_bytes[0];
  }
  if (dice.chance(0.2)) profile.nodes.back().params.push_back(0);  // tied
  problem.request.global_batch = int64_t{1} << (large ? dice.draw(4, 6) : dice.draw(3, 5));
  cost::Cluster& cluster = problem.cluster;
  cluster.hosts = large ? dice.draw(1, 4) : dice.draw(1, 2);
  cluster.devices_per_host = large ? 1 << dice.draw(1, 3) : dice.draw(2, 8 / cluster.hosts);
  const double bandwidth = dice.magnitude(1e9, 3e10);
  cluster.intra_host = {bandwidth, 200};
  cluster.inter_host = {bandwidth / dice.magnitude(1, 10), 1000};
  cluster.device_memory_bytes = 1e15;
  if (dice.chance(0.5)) {  // one device holds a part only
    cluster.device_memory_bytes = (4 * params + 2 * activations) * dice.magnitude(0.15, 1);
  }
  return problem;
}

/// "1f1b 8 micro-batches: n0 n1 on 2, n2 on 1": which nodes are on how many ranks.
std::string text_of(const cost::GraphProfile& profile, const partition::NodePlan& plan) {
  const partition::Draft& draft = plan.scored.draft;
  std::string text =
      fmt::format("{} {} micro-batches:", plan::name(draft.schedule), draft.micro_batches);
  for (int s = 0; s < draft.stages(); ++s) {
    text += s > 0 ? "," : "";
    for (const uint32_t node : plan.nodes[static_cast<size_t>(s)]) {
      text += " " + profile.nodes[node].name;
    }
    text += " on";
    for (const partition::Segment& ranks : draft.ranks(s)) {
      text += fmt::format(" {}+{}", ranks.first, ranks.count);
    }
    if (draft.recompute[static_cast<size_t>(s)]) text += " again";
  }
  return text;
}

/// The same graph with its nodes in a random topological order: each goes when it is ready and its
/// chance comes, branches at speeds of their own.
cost::GraphProfile reordered(const cost::GraphProfile& profile, Dice& dice) {
  const size_t count = profile.nodes.size();
  std::vector<uint32_t> waits(count, 0), order;
  std::vector<std::vector<uint32_t>> next(count);
  for (uint32_t node = 0; node < count; ++node) {
    for (const cost::ProfileUse& use : profile.nodes[node].inputs) {
      if (use.is_input) continue;
      next[use.node].push_back(node);
      ++waits[node];
    }
  }
  // A node passes its time on to one of its readers; the others start with a step of their own.
  std::vector<double> time(count, 0.0), step(count);
  for (double& value : step) value = dice.magnitude(0.1, 10);
  std::vector<uint32_t> ready;
  for (uint32_t node = 0; node < count; ++node) {
    if (waits[node] == 0) ready.push_back(node);
  }
  while (!ready.empty()) {
    const auto first =
        std::ranges::min_element(ready, {}, [&](uint32_t node) { return time[node]; });
    const uint32_t node = *first;
    ready.erase(first);
    order.push_back(node);
    bool inherits = next[node].size() == 1;
    for (const uint32_t user : next[node]) {
      time[user] = std::max(time[user], time[node] + step[node]);
      if (inherits) step[user] = step[node];
      if (--waits[user] == 0) ready.push_back(user);
    }
  }
  std::vector<uint32_t> place(count);
  for (uint32_t k = 0; k < count; ++k) place[order[k]] = k;
  cost::GraphProfile result = profile;
  for (uint32_t k = 0; k < count; ++k) {
    result.nodes[k] = profile.nodes[order[k]];
    for (cost::ProfileUse& use : result.nodes[k].inputs) {
      if (!use.is_input) use.node = place[use.node];
    }
  }
  return result;
}

struct Answer {
  double ns = kInfinity;
  bool exact = false;
  double seconds = 0;
  std::string text;  ///< the plan in a line
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Answer solve(const Problem& problem, bool exactly) {
  Answer answer;
  const double start = now_s();
  partition::Stop stop(0, nullptr);
  const partition::Attempt attempt({problem.profile,
                                    problem.cluster,
                                    problem.request,
                                    partition::atomic_pieces(problem.profile),
                                    partition::search_space(problem.request, problem.cluster, {}),
                                    {.exactly = exactly}},
                                   128, stop);
  if (attempt.found()) {
    answer.ns = attempt.winner().scored.figures.iteration_ns;
    answer.text = text_of(problem.profile, attempt.winner());
  }
  answer.exact = attempt.exact();
  answer.seconds = now_s() - start;
  return answer;
}

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

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  bool large = false, verbose = false, times = false;
  uint64_t problems = 100, first = 0;
  int orders = 20;
  for (size_t k = 0; k < words.size(); ++k) {
    if (words[k] == "small" || words[k] == "large") {
      large = words[k] == "large";
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
    } else {
      throw ConfigError("unknown option " + words[k] + "; the head of this source lists them");
    }
  }
  std::map<std::string, Tally> tallies;
  int unknown = 0, infeasible = 0;
  for (uint64_t seed = first; seed < first + problems; ++seed) {
    const Problem problem = random_problem(seed, large);
    const Answer ours = solve(problem, false);
    if (times) {
      fmt::print("{} {} {:.0f} {:.3f}\n", seed, problem.shape, ours.ns, ours.seconds);
      continue;
    }
    Answer other;
    if (large) {
      Dice dice(seed + 1'000'000);
      for (int k = 0; k < orders; ++k) {
        Problem same = problem;
        same.profile = reordered(problem.profile, dice);
        const Answer next = solve(same, false);
        if (next.ns < other.ns) other = next;
      }
    } else {
      other = solve(problem, true);
      if (!other.exact) {
        ++unknown;
        continue;
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
                 problem.cluster.devices_per_host, ratio, ours.text, other.text);
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
