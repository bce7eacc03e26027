// Planning time on one core, from a profile in memory, against the budgets that the comments state:
//
//   cmake -S . -B build-bench -G Ninja -DRANNC_TORCH=OFF -DRANNC_BENCHMARKS=ON
//   cmake --build build-bench && build-bench/benchmarks/planner_bench
#include "rannc/partition/planner.h"

#include <benchmark/benchmark.h>

#include <string>

namespace rannc::partition {
namespace {

/// A transformer: `layers` times `per_layer` nodes with a skip around each layer, behind an
/// embedding that is tied to the head. Times, bytes and parameters of hidden size `hidden` and
/// sequence length 2048 at 100 Tflop/s, half precision. Of version 2, as a captured one: half of
/// what a node saves it has in common with the node before it, as what one makes the other reads.
cost::GraphProfile transformer(int layers, int per_layer, double hidden,
                               double vocabulary = 51200) {
  constexpr double kSequence = 2048, kFlopsPerNs = 1e5;
  cost::GraphProfile profile;
  profile.version = 2;
  profile.name = "transformer";
  profile.dtype = "bfloat16";
  profile.rows = {1, 4};
  profile.inputs = {{.name = "tokens", .size = {8 * kSequence, 0}}};
  profile.params = {{.id = "embedding", .bytes = 2 * vocabulary * hidden}};
  const double value = 2 * kSequence * hidden, layer_params = 12 * hidden * hidden;
  const auto add = [&](const std::string& name, const std::string& op, double flops, double saved,
                       std::vector<uint32_t> reads) {
    cost::ProfileNode& node = profile.nodes.emplace_back();
    node.name = name;
    node.op = op;
    if (reads.empty()) node.inputs = {{true, 0, 0}};
    for (const uint32_t read : reads) node.inputs.push_back({false, read, 0});
    node.outputs = {{.size = {value, 0}, .grad = true}};
    const double ns = flops / kFlopsPerNs;
    node.forward_ns = {5e3 + ns, 5e3 + 4 * ns};
    node.backward_ns = {1e4 + 2 * ns, 1e4 + 8 * ns};
    const auto index = static_cast<uint32_t>(profile.nodes.size() - 1);
    node.adds_in_place = true;
    node.saved_bytes = {saved / 2, 2 * saved};
    cost::SavedStorage& storage = profile.saved.emplace_back();
    if (index > 0) storage.nodes.push_back(index - 1);
    storage.nodes.push_back(index);
    storage.bytes = node.saved_bytes;
    node.workspace_bytes = {1e6, 4e6};
  };
  add("embedding", "embedding", 1e9, value, {});
  profile.nodes.back().params = {0};
  for (int layer = 0; layer < layers; ++layer) {
    const auto entry = static_cast<uint32_t>(profile.nodes.size() - 1);
    double weights = 0;
    for (int k = 0; k < per_layer; ++k) weights += 1 + k % 3;
    for (int k = 0; k < per_layer; ++k) {
      const auto before = static_cast<uint32_t>(profile.nodes.size() - 1);
      const double part = (1 + k % 3) / weights;
      std::vector<uint32_t> reads{before};
      if (k > 0 && k == per_layer - 1) reads.push_back(entry);
      add("layers." + std::to_string(layer) + ".op" + std::to_string(k), "op" + std::to_string(k),
          2 * kSequence * layer_params * part, 17 * value * part, reads);
      profile.nodes.back().params = {static_cast<uint32_t>(profile.params.size())};
      profile.params.push_back(
          {.id = profile.nodes.back().name + ".weight", .bytes = 2 * layer_params * part});
    }
  }
  add("head", "linear", 2 * kSequence * vocabulary * hidden, 2 * kSequence * vocabulary,
      {static_cast<uint32_t>(profile.nodes.size() - 1)});
  profile.nodes.back().params = {0};
  return profile;
}

cost::Cluster cluster(int hosts, double memory_gb = 80) {
  cost::Cluster result;
  result.hosts = hosts;
  result.devices_per_host = 8;
  result.device_memory_bytes = memory_gb * 1e9;
  result.intra_host = {3e11, 5e3};
  result.inter_host = {2.5e10, 1e4};
  result.links_per_host = 8;
  return result;
}

Request request(int64_t batch) {
  Request result;
  result.global_batch = batch;
  result.optimizer_bytes_per_param_byte = 6;
  return result;
}

void plan(benchmark::State& state, const cost::GraphProfile& profile, const cost::Cluster& machine,
          const Request& wanted) {
  plan::Plan plan;
  for (auto _ : state) plan = make_plan(profile, machine, wanted);
  const size_t gap = plan.notes.find("\"gap\":"), examined = plan.notes.find("\"examined\":");
  state.SetLabel(plan.feasible
                     ? std::to_string(profile.nodes.size()) +
                           " nodes: " + std::to_string(plan.stages.size()) + " stages x " +
                           std::to_string(plan.stages[0].ranks.size()) + ", " +
                           std::string(plan::name(plan.schedule)) + ", " +
                           std::to_string(plan.micro_batches) + " micro-batches, gap " +
                           plan.notes.substr(gap + 6, 5) + " " + plan.notes.substr(examined, 18)
                     : "infeasible");
}

// Under 0.2 s.
void BM_Layers40Devices32(benchmark::State& state) {
  plan(state, transformer(38, 1, 4096), cluster(4), request(256));
}
// Under 3 s.
void BM_Layers100Devices1024(benchmark::State& state) {
  plan(state, transformer(98, 1, 12288), cluster(128), request(1536));
}
// BERT of 4.9 B parameters by operators: under 2 s.
void BM_Operators4kDevices32(benchmark::State& state) {
  plan(state, transformer(96, 40, 2048), cluster(4, 32), request(256));
}
// GPT of 175 B parameters by operators: under 10 s.
void BM_Operators4kDevices1024(benchmark::State& state) {
  plan(state, transformer(96, 40, 12288), cluster(128), request(1536));
}
// 1 T parameters: under 60 s and 4 GiB.
void BM_Operators5kDevices4096(benchmark::State& state) {
  plan(state, transformer(128, 40, 25600), cluster(512), request(4096));
}
BENCHMARK(BM_Layers40Devices32)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Layers100Devices1024)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Operators4kDevices32)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Operators4kDevices1024)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Operators5kDevices4096)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace rannc::partition
