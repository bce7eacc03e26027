#include <benchmark/benchmark.h>

#include <string>

#include "partition/blocks/blocks.h"
#include "partition/blocks/pieces.h"
#include "rannc/partition/planner.h"

namespace rannc::partition {
namespace {

/// A transformer-like chain: layers of `kLayerNodes` unequal nodes with a skip around each layer,
/// and an embedding tied to the head. Times and bytes of a GPT with hidden size 2048.
constexpr int kLayerNodes = 8;

cost::GraphProfile transformer(int nodes) {
  cost::GraphProfile profile;
  profile.name = "transformer";
  profile.rows = {1, 4};
  profile.inputs = {{.name = "tokens", .size = {8192, 0}}};
  profile.params = {{.id = "embedding", .bytes = 4e8}};
  for (int k = 0; k < nodes; ++k) {
    const auto self = static_cast<uint32_t>(k);
    const bool end = k == 0 || k == nodes - 1;
    const double weight = end ? 6 : 1 + (k * 7) % kLayerNodes;
    cost::ProfileNode node;
    node.name = "n" + std::to_string(k);
    node.op = "op" + std::to_string(k % kLayerNodes);
    node.inputs = {k == 0 ? cost::ProfileUse{true, 0, 0} : cost::ProfileUse{false, self - 1, 0}};
    if (k >= kLayerNodes && k % kLayerNodes == 0) {
      node.inputs.push_back({false, self - kLayerNodes, 0});
    }
    node.outputs = {{.size = {8e6, 0}, .grad = true}};
    node.forward_ns = {3e4 + 1e5 * weight, 3e4 + 4e5 * weight};
    node.backward_ns = {6e4 + 2e5 * weight, 6e4 + 8e5 * weight};
    node.saved_bytes = {4e6 * weight, 16e6 * weight};
    node.workspace_bytes = {1e6, 4e6};
    if (end) {
      node.params = {0};
    } else if (k % 2 == 1) {
      node.params = {static_cast<uint32_t>(profile.params.size())};
      profile.params.push_back({.id = "p" + std::to_string(k), .bytes = 4e7});
    }
    profile.nodes.push_back(std::move(node));
  }
  return profile;
}

cost::Cluster cluster(int devices, double memory_gb) {
  cost::Cluster result;
  result.hosts = devices > 8 ? devices / 8 : 1;
  result.devices_per_host = devices > 8 ? 8 : devices;
  result.device_memory_bytes = memory_gb * 1e9;
  result.intra_host = {2e11, 5e3};
  result.inter_host = {2e10, 1e4};
  return result;
}

// Planning must stay interactive: 128 blocks on 32 devices, all powers of two up to 32
// micro-batches, both schedules, within two seconds on one core, with memory ample and scarce.
void BM_MakePlan(benchmark::State& state) {
  const cost::GraphProfile profile = transformer(static_cast<int>(state.range(0)));
  const cost::Cluster machine =
      cluster(static_cast<int>(state.range(1)), static_cast<double>(state.range(2)));
  Request request;
  request.global_batch = 512;
  request.micro_batches = {1, 2, 4, 8, 16, 32};
  plan::Plan plan;
  for (auto _ : state) {
    plan = make_plan(profile, machine, request, {.max_blocks = static_cast<int>(state.range(0))});
  }
  state.SetLabel(plan.feasible ? std::to_string(plan.stages.size()) + " stages, " +
                                     std::string(plan::name(plan.schedule)) + ", " +
                                     std::to_string(plan.micro_batches) + " micro-batches"
                               : "infeasible");
}
BENCHMARK(BM_MakePlan)
    ->ArgNames({"blocks", "devices", "memory_gb"})
    ->Args({128, 8, 80})
    ->Args({128, 32, 80})
    ->Args({128, 32, 6})
    ->Args({128, 32, 3})
    ->Args({128, 32, 1})
    ->Args({256, 32, 6})
    ->Unit(benchmark::kMillisecond);

// Phases 1 and 2 are near-linear: 200,000 nodes within a second.
void BM_Blocks(benchmark::State& state) {
  const cost::GraphProfile profile = transformer(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(make_blocks(profile, atomic_pieces(profile), {}));
  }
}
BENCHMARK(BM_Blocks)->Arg(2'000)->Arg(20'000)->Arg(200'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rannc::partition
