// Planning time on one core, from a profile in memory, against the budgets that the comments state:
//
//   cmake -S . -B build-bench -G Ninja -DRANNC_TORCH=OFF -DRANNC_BENCHMARKS=ON
//   cmake --build build-bench && build-bench/benchmarks/planner_bench
#include "rannc/partition/planner.h"

#include <benchmark/benchmark.h>

#include <string>

#include "planner/transformers.h"

namespace rannc::partition {
namespace {

using benchmarks::adam;
using benchmarks::hosts_of_8;
using benchmarks::transformer;

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
  plan(state, transformer(38, 1, 4096), hosts_of_8(4), adam(256));
}
// Under 3 s.
void BM_Layers100Devices1024(benchmark::State& state) {
  plan(state, transformer(98, 1, 12288), hosts_of_8(128), adam(1536));
}
// BERT of 4.9 B parameters by operators: under 2 s.
void BM_Operators4kDevices32(benchmark::State& state) {
  plan(state, transformer(96, 40, 2048), hosts_of_8(4, 32), adam(256));
}
// GPT of 175 B parameters by operators: under 10 s.
void BM_Operators4kDevices1024(benchmark::State& state) {
  plan(state, transformer(96, 40, 12288), hosts_of_8(128), adam(1536));
}
// 1 T parameters: under 60 s and 4 GiB. For devices of 80 GB, by the account of version 2, none is
// found.
void BM_Operators5kDevices4096(benchmark::State& state) {
  plan(state, transformer(128, 40, 25600), hosts_of_8(512, 96), adam(4096));
}
BENCHMARK(BM_Layers40Devices32)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Layers100Devices1024)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Operators4kDevices32)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Operators4kDevices1024)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Operators5kDevices4096)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace rannc::partition
