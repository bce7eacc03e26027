#include "partition/random_problem.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "partition/brute_force.h"
#include "partition/dice.h"
#include "rannc/partition/evaluate.h"

namespace rannc::partition::testing {
namespace {

constexpr std::array kShapes{"chain", "skips", "branches", "dag", "u-net"};

std::vector<std::vector<uint32_t>> sources(Dice& dice, const std::string& shape, int nodes) {
  std::vector<std::vector<uint32_t>> result(static_cast<size_t>(nodes));
  const auto add = [&](int to, int from) {
    auto& list = result[static_cast<size_t>(to)];
    const auto value = static_cast<uint32_t>(from);
    if (std::ranges::find(list, value) == list.end()) list.push_back(value);
  };
  const int width = dice.draw(2, 3);
  for (int k = 1; k < nodes; ++k) {
    if (shape == "chain" || shape == "u-net") add(k, k - 1);
    if (shape == "u-net" && k >= (nodes + 1) / 2 && nodes - 1 - k < k - 1) add(k, nodes - 1 - k);
    if (shape == "skips") {
      add(k, k - 1);
      if (k >= 2 && dice.chance(0.5)) add(k, dice.draw(0, k - 2));
    }
    if (shape == "branches") {  // a root, branches side by side, a join
      if (k == nodes - 1) {
        for (int branch = 0; branch < std::min(width, k); ++branch) add(k, k - 1 - branch);
      } else {
        add(k, k <= width ? 0 : k - width);
      }
    }
    if (shape == "dag" && dice.chance(0.85)) {
      for (int reads = dice.draw(1, 2); reads > 0; --reads)
        add(k, dice.draw(std::max(0, k - 4), k - 1));
    }
  }
  return result;
}

std::vector<double> cost(Dice& dice, const std::vector<int64_t>& rows, double base, double slope) {
  std::vector<double> result;
  for (const int64_t b : rows) result.push_back(std::floor(base + slope * static_cast<double>(b)));
  // Small batches are less efficient than the line through the others.
  if (rows.size() == 3 && dice.chance(0.5)) result[0] = std::floor(result[0] * dice.real(1, 1.4));
  return result;
}

cost::GraphProfile graph(Dice& dice, const std::string& shape, int nodes) {
  cost::GraphProfile profile;
  profile.name = shape;
  profile.rows = std::array<std::vector<int64_t>, 3>{{{1}, {1, 4}, {1, 2, 8}}}.at(
      static_cast<size_t>(dice.draw(0, 2)));
  profile.inputs = {{.name = "x", .size = {double(dice.draw(0, 100)), 0}},
                    {.name = "y", .size = {double(dice.draw(0, 40)), double(dice.draw(0, 9))}}};
  const auto edges = sources(dice, shape, nodes);
  const double uneven = dice.real(0, 2);  // powers of e between nodes
  const double value_bytes = dice.magnitude(100, 3000);
  const double param_bytes = dice.chance(0.1) ? 0 : dice.magnitude(1000, 100000);
  for (int k = 0; k < nodes; ++k) {
    cost::ProfileNode node;
    node.name = "n" + std::to_string(k);
    node.op = "op";
    if (edges[static_cast<size_t>(k)].empty() || dice.chance(0.1)) {
      node.inputs.push_back({true, uint32_t(dice.draw(0, 1)), 0});
    }
    for (const uint32_t from : edges[static_cast<size_t>(k)]) {
      const auto outputs = static_cast<int>(profile.nodes[from].outputs.size());
      node.inputs.push_back({false, from, uint32_t(dice.draw(0, outputs - 1))});
    }
    for (int outputs = dice.chance(0.15) ? 2 : 1; outputs > 0; --outputs) {
      const double bytes = dice.chance(0.05) ? 0 : std::floor(value_bytes * dice.magnitude(0.3, 3));
      const double fixed = dice.chance(0.15) ? std::floor(value_bytes * dice.real(0, 1)) : 0;
      node.outputs.push_back({.size = {bytes, fixed}, .grad = !dice.chance(0.1)});
    }
    const double slope = 1000 * std::exp(dice.real(-uneven, uneven));
    const double base = profile.rows.size() == 1 || dice.chance(0.3) ? 0 : dice.real(0, 2000);
    node.forward_ns = cost(dice, profile.rows, base, slope);
    node.backward_ns = cost(dice, profile.rows, base, slope * dice.real(1.5, 2.5));
    node.saved_bytes = cost(dice, profile.rows, 0, value_bytes * dice.magnitude(0.5, 10));
    node.workspace_bytes.assign(profile.rows.size(), 0);
    if (dice.chance(0.3)) node.workspace_bytes = cost(dice, profile.rows, 50, value_bytes);
    if (param_bytes > 0 && dice.chance(0.8)) {
      node.params.push_back(static_cast<uint32_t>(profile.params.size()));
      cost::ProfileParam param{.id = "p" + std::to_string(k),
                               .bytes = std::floor(param_bytes * dice.magnitude(0.2, 5)),
                               .trainable = !dice.chance(0.1)};
      if (dice.chance(0.1)) param.optimizer_bytes = std::floor(param.bytes * dice.real(0, 3));
      profile.params.push_back(std::move(param));
    }
    profile.nodes.push_back(std::move(node));
  }
  const auto tie = [&](size_t from, size_t to) {
    const std::vector<uint32_t>& params = profile.nodes[from].params;
    if (from == to || params.empty()) return;
    std::vector<uint32_t>& list = profile.nodes[to].params;
    if (std::ranges::find(list, params[0]) == list.end()) list.push_back(params[0]);
  };
  const auto any = [&] { return static_cast<size_t>(dice.draw(0, nodes - 1)); };
  if (dice.chance(0.25)) tie(0, static_cast<size_t>(nodes) - 1);
  if (dice.chance(0.15)) tie(any(), any());
  if (nodes > 2 && dice.chance(0.2)) {
    const auto first = static_cast<size_t>(dice.draw(0, nodes - 2));
    profile.nodes[first].group = profile.nodes[first + 1].group = "g";
    if (dice.chance(0.3)) profile.nodes[any()].group = "g";
  }
  return profile;
}

/// In some problems the host's times for issuing nodes, on a few nodes as long as the device's. Of
/// dice of its own, so that all else stays what it is without them.
void add_host_times(Dice dice, cost::GraphProfile& profile) {
  if (!dice.chance(0.3)) return;
  for (cost::ProfileNode& node : profile.nodes) {
    const double slope = dice.chance(0.5) ? dice.real(0, 300) : 0;
    const double base = dice.magnitude(100, 20000);
    if (dice.chance(0.9)) node.forward_host_ns = cost(dice, profile.rows, base, slope);
    if (dice.chance(0.9)) node.backward_host_ns = cost(dice, profile.rows, 1.5 * base, slope);
  }
}

/// What version 2 says beside version 1: memory that several nodes save, mostly neighbours.
void as_version_2(Dice& dice, cost::GraphProfile& profile, Request& request) {
  profile.version = 2;
  const auto nodes = static_cast<int>(profile.nodes.size());
  for (cost::ProfileNode& node : profile.nodes) node.adds_in_place = dice.chance(0.4);
  for (int count = dice.draw(0, 2 * nodes); count > 0; --count) {
    cost::SavedStorage storage;
    const bool anywhere = dice.chance(0.2);
    const int first = dice.draw(0, nodes - 1);
    for (int k = 0; k < nodes; ++k) {
      const bool near = k >= first && k <= first + 1;
      if (anywhere ? dice.chance(0.4) : near) storage.nodes.push_back(static_cast<uint32_t>(k));
    }
    storage.bytes = cost(dice, profile.rows, 0, dice.magnitude(100, 5000));
    if (!storage.nodes.empty()) profile.saved.push_back(std::move(storage));
  }
  if (dice.chance(0.2)) request.master_bytes_per_param_byte = dice.real(0, 2);
  request.shard_optimizer = dice.chance(0.2);
}

cost::Cluster machine(Dice& dice, int most_ranks, bool uneven) {
  cost::Cluster cluster;
  cluster.hosts = most_ranks >= 2 && dice.chance(0.5) ? 2 : 1;
  const int most = most_ranks / cluster.hosts;
  cluster.devices_per_host = std::max(dice.draw(1, most), dice.draw(1, most));
  const double bandwidth = dice.magnitude(3e8, 3e10);  // 1e9 is a byte per ns
  cluster.intra_host = {bandwidth, std::floor(dice.real(0, 300))};
  cluster.inter_host = {bandwidth / dice.magnitude(1, 20), std::floor(dice.real(0, 1000))};
  cluster.links_per_host = dice.chance(0.3) ? dice.draw(2, 4) : 1;
  cluster.device_memory_bytes = 1e15;
  if (uneven && cluster.hosts == 2 && cluster.devices_per_host > 1) {
    std::vector<int> devices{cluster.devices_per_host, dice.draw(1, cluster.devices_per_host - 1)};
    if (dice.chance(0.5)) std::swap(devices[0], devices[1]);
    for (int host = 0; host < 2; ++host) {
      cluster.host_of_rank.insert(cluster.host_of_rank.end(), size_t(devices[size_t(host)]), host);
    }
  }
  return cluster;
}

Request wish(Dice& dice, const ProblemOptions& options) {
  Request request;
  request.global_batch = dice.draw(1, 24);
  if (dice.chance(0.3)) {
    for (int64_t m = 1; m <= request.global_batch; ++m) {
      if (dice.chance(0.4)) request.micro_batches.push_back(m);
    }
  }
  if (dice.chance(0.2)) request.gradient_bytes_per_param_byte = dice.real(0, 2);
  if (dice.chance(0.2)) request.optimizer_bytes_per_param_byte = dice.real(0, 6);
  if (dice.chance(0.2)) request.memory_margin = 0.1;
  if (dice.chance(0.3)) request.reduction_buckets = dice.draw(2, 4);
  const double recompute = dice.real(0, 1);
  request.recompute = Recompute::stage;  // brute force knows no segments
  if (recompute < 0.1) request.recompute = Recompute::always;
  if (recompute > 0.9) request.recompute = Recompute::never;
  const double schedules = dice.real(0, 1);
  if (schedules < 0.1) request.schedules = {plan::Schedule::gpipe};
  if (schedules > 0.9) request.schedules = {plan::Schedule::one_f_one_b};
  if (options.interleaved && dice.chance(0.5)) {
    request.schedules.push_back(plan::Schedule::interleaved);
    request.max_interleave = dice.draw(2, 4);
  }
  return request;
}

/// Bytes that one rank needs for everything at once, in the smallest micro-batches.
double whole_bytes(const Problem& problem) {
  brute::Judge judge(problem.profile, problem.cluster, problem.request);
  const std::vector<int64_t> counts = allowed_micro_batches(problem.request);
  brute::Choice choice;
  choice.shape = {plan::Schedule::gpipe, 1, 1, *std::ranges::max_element(counts)};
  choice.stages = {judge.tables().all()};
  choice.replicas[0] = 1;
  return judge.peak_bytes(choice, 0);
}

}  // namespace

Problem random_problem(uint64_t seed, const ProblemOptions& options) {
  Dice dice(seed);
  Problem problem;
  problem.shape = kShapes.at(static_cast<size_t>(dice.draw(0, kShapes.size() - 1)));
  problem.cluster = machine(dice, options.most_ranks, options.uneven);
  if (options.speeds && problem.cluster.hosts == 2) {
    Dice speed(seed + 1);
    problem.cluster.speed_of_host = {1, speed.magnitude(0.1, 1)};
    if (speed.chance(0.5))
      std::swap(problem.cluster.speed_of_host[0], problem.cluster.speed_of_host[1]);
    if (speed.chance(0.2)) problem.cluster.speed_of_host[0] *= 2;
  }
  problem.request = wish(dice, options);
  int nodes = std::max(dice.draw(1, options.most_nodes), dice.draw(1, options.most_nodes));
  do {
    problem.profile = graph(dice, problem.shape, nodes--);
    const brute::Tables tables(problem.profile, problem.cluster, problem.request);
    if (count_cuts(tables, options.most_cuts + 1) <= options.most_cuts) break;
  } while (true);
  if (options.version > 1) {
    add_host_times(Dice(~seed), problem.profile);
    as_version_2(dice, problem.profile, problem.request);
  }
  if (dice.chance(0.45)) {
    problem.cluster.device_memory_bytes = whole_bytes(problem) * dice.magnitude(0.12, 1.2);
  }
  if (dice.chance(0.1)) {  // forced choices that the rest of the request allows
    Force& force = problem.request.force;
    const std::vector<int64_t> counts = allowed_micro_batches(problem.request);
    if (dice.chance(0.5)) {
      force.micro_batches = counts.at(static_cast<size_t>(dice.draw(0, int(counts.size()) - 1)));
    }
    const int stages = dice.draw(1, std::min(problem.cluster.ranks(), 3));
    if (dice.chance(0.5)) force.stages = stages;
    if (!force.stages && dice.chance(0.3)) force.replicas = std::vector<int>(size_t(stages), 1);
    if (dice.chance(0.3)) force.schedule = problem.request.schedules.front();
  }
  return problem;
}

}  // namespace rannc::partition::testing
