#include "planner/branched_problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "partition/problem/search_space.h"
#include "partition/search/search_at_resolution.h"
#include "rannc/util/error.h"

namespace rannc::benchmarks {
namespace {

using partition::testing::Dice;

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

/// Cells behind each other, as those of NASNet and DARTS: a cell reads the two before it, each of
/// its inner nodes reads two of what its cell has so far, and its last node what nobody has read.
Edges cells(Dice& dice) {
  Edges edges;
  const int inner = dice.draw(4, 6), length = dice.draw(6, 9);
  uint32_t before = add_chain(edges, {}, 1), last = before;
  for (int cell = 0; cell < length; ++cell) {
    std::vector<uint32_t> known{before};
    if (last != before) known.push_back(last);
    const size_t given = known.size();
    std::vector<bool> is_read(given, true);
    for (int k = 0; k < inner; ++k) {
      const int most = static_cast<int>(known.size()) - 1;
      const auto a = static_cast<size_t>(dice.draw(0, most));
      auto b = static_cast<size_t>(dice.draw(0, most));
      // A cell reads both of those before it.
      if (k == 0) b = given - 1;
      std::vector<uint32_t> reads{known[a]};
      if (b != a) reads.push_back(known[b]);
      is_read[a] = is_read[b] = true;
      known.push_back(add_chain(edges, std::move(reads), 1));
      is_read.push_back(false);
    }
    std::vector<uint32_t> ends;
    for (size_t k = given; k < known.size(); ++k) {
      if (!is_read[k]) ends.push_back(known[k]);
    }
    before = last;
    last = add_chain(edges, std::move(ends), 1);
  }
  return edges;
}

Edges random_edges(Dice& dice, Family family, std::string& shape) {
  const bool large = family == Family::large;
  Edges edges;
  if (family == Family::cells) {
    shape = "cells";
    return cells(dice);
  }
  const int nodes = large ? dice.draw(20, 60) : dice.draw(9, 14);
  switch (dice.draw(0, 4)) {
    case 0:
      shape = "two towers";
      edges = two_towers(dice, nodes);
      break;
    case 1:
      shape = "forks";
      edges = forks(dice, nodes, large ? 3 : 4);
      break;
    case 2:
      shape = "chain";
      add_chain(edges, {}, nodes);
      break;
    case 3:
      shape = "u-net";
      edges = u_net(dice, large ? nodes / 2 : nodes);
      break;
    default:
      shape = "encoder-decoder";
      edges = encoder_decoder(dice, nodes);
  }
  return edges;
}

}  // namespace

Family family(const std::string& word) {
  if (word == "small") return Family::small;
  if (word == "large") return Family::large;
  if (word == "cells") return Family::cells;
  throw ConfigError("'" + word + "' is none of small, large and cells");
}

Problem random_problem(uint64_t seed, Family family) {
  Dice dice(seed);
  Problem problem;
  const bool large = family != Family::small;
  const Edges edges = random_edges(dice, family, problem.shape);
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
  if (family == Family::cells) {
    cluster.hosts = 1 << dice.draw(1, 3);
    if (cluster.hosts == 8) cluster.hosts = 16;
    cluster.devices_per_host = 16 / cluster.hosts;
    const double bandwidth = dice.magnitude(3e9, 3e10);
    cluster.intra_host = {bandwidth, 200};
    cluster.inter_host = {bandwidth / dice.magnitude(5, 40), 5000};
  } else {
    cluster.hosts = large ? dice.draw(1, 4) : dice.draw(1, 2);
    cluster.devices_per_host = large ? 1 << dice.draw(1, 3) : dice.draw(2, 8 / cluster.hosts);
    const double bandwidth = dice.magnitude(1e9, 3e10);
    cluster.intra_host = {bandwidth, 200};
    cluster.inter_host = {bandwidth / dice.magnitude(1, 10), 1000};
  }
  cluster.device_memory_bytes = 1e15;
  if (dice.chance(0.5)) {  // one device holds a part only
    cluster.device_memory_bytes = (4 * params + 2 * activations) * dice.magnitude(0.15, 1);
  }
  return problem;
}

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

Answer solve(const Problem& problem, const partition::SearchOptions& options,
             std::vector<int> resolutions) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<partition::Piece> pieces = partition::atomic_pieces(problem.profile);
  const partition::Attempt::Problem all{
      problem.profile,
      problem.cluster,
      problem.request,
      pieces,
      partition::search_space(problem.request, problem.cluster, {}),
      options};
  Answer answer;
  for (const int blocks : resolutions) {
    partition::Stop stop(0, nullptr);
    const partition::Attempt attempt(all, blocks, stop);
    answer.exact = attempt.exact();
    if (!attempt.found()) continue;
    if (attempt.winner().scored.figures.iteration_ns <= answer.ns) {
      answer.ns = attempt.winner().scored.figures.iteration_ns;
      answer.plan = attempt.winner();
    }
    for (const partition::Scored& scored : attempt.best().top()) {
      answer.others.push_back(partition::to_node_plan(scored, attempt.blocks()));
    }
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  answer.seconds = passed.count();
  return answer;
}

}  // namespace rannc::benchmarks
