// Time to lower a plan for one batch, which a job whose batches vary in size pays in every call:
//
//   cmake -S . -B build-bench -G Ninja -DRANNC_TORCH=OFF -DRANNC_BENCHMARKS=ON
//   cmake --build build-bench -t lower_bench && build-bench/benchmarks/lower_bench
//
// With the order of communication it may take twice what it takes without: 24 GPT layers and 32
// micro-batches. On a virtual machine of two cores, milliseconds of processor time without and with
// it:
//
//   ranks              8              64
//   1f1b, fill-drain   0.5 -> 0.65    1.7 -> 2.9
//   interleaved        0.7 -> 0.9     3.8 -> 5.2
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/program.h"

namespace rannc::plan {
namespace {

/// The forward of a GPT: in each layer two normalisations, attention and a multilayer perceptron,
/// with a weight and a bias for each of its six linear parts; ends in the loss.
class Gpt {
 public:
  ir::Graph graph;
  std::vector<std::vector<std::string>> layers;  // names of nodes; first and last join the ends

  explicit Gpt(int count) {
    ir::ValueId x = input("tokens");
    const ir::ValueId labels = input("labels");
    const ir::ValueId embedding = parameter("embedding", 50257 * 1024);
    layers.resize(static_cast<size_t>(count));
    x = node(0, "embed", {x, embedding}, true);
    for (int layer = 0; layer < count; ++layer) {
      const auto at = static_cast<size_t>(layer);
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      const auto linear = [&](const std::string& name, ir::ValueId from, int64_t size) {
        return node(at, prefix + name,
                    {from, parameter(prefix + name + ".weight", size),
                     parameter(prefix + name + ".bias", 1024)},
                    true);
      };
      const ir::ValueId norm = linear("ln_1", x, 1024);
      const ir::ValueId q = linear("q", norm, 1 << 20), k = linear("k", norm, 1 << 20),
                        v = linear("v", norm, 1 << 20);
      const ir::ValueId attention = node(at, prefix + "attention", {q, k, v}, true);
      x = node(at, prefix + "add_1", {x, linear("out", attention, 1 << 20)}, true);
      const ir::ValueId up = linear("up", linear("ln_2", x, 1024), 4 << 20);
      const ir::ValueId down = linear("down", node(at, prefix + "gelu", {up}, true), 4 << 20);
      x = node(at, prefix + "add_2", {x, down}, true);
    }
    const auto last = layers.size() - 1;
    const ir::ValueId logits = node(last, "head", {x, embedding}, true);
    const ir::ValueId loss = node(last, "loss", {logits, labels}, true);
    graph[loss].dims.clear();
    graph[loss].rows.kind = ir::RowKind::mean;
    graph.outputs = {loss};
  }

 private:
  ir::ValueId add(const std::string& name, ir::ValueKind kind, std::vector<ir::AffineInt> dims,
                  bool requires_grad) {
    ir::Value value;
    value.name = name;
    value.kind = kind;
    value.dims = std::move(dims);
    value.requires_grad = requires_grad;
    if (kind == ir::ValueKind::input || kind == ir::ValueKind::result) {
      value.rows = {.kind = ir::RowKind::apart};
    }
    return graph.add_value(std::move(value));
  }
  ir::ValueId input(const std::string& name) {
    graph.inputs.push_back(add(name, ir::ValueKind::input, {{0, 1}, {1024, 0}}, false));
    return graph.inputs.back();
  }
  ir::ValueId parameter(const std::string& name, int64_t size) {
    return add(name, ir::ValueKind::parameter, {{size, 0}}, true);
  }
  ir::ValueId node(size_t layer, const std::string& name, const std::vector<ir::ValueId>& operands,
                   bool requires_grad) {
    const ir::ValueId result =
        add(name + "_out", ir::ValueKind::result, {{0, 1}, {1024, 0}}, requires_grad);
    ir::Node made;
    made.name = name;
    made.op = "aten::test";
    for (ir::ValueId operand : operands) made.inputs.emplace_back(operand);
    made.outputs = {result};
    graph.add_node(std::move(made));
    layers[layer].push_back(name);
    return result;
  }
};

/// Layers dealt to `stages` stages, `ranks` ranks to these; under the interleaved schedule a rank
/// has two of them.
Plan plan_of(const Gpt& gpt, int stages, int ranks, Schedule schedule) {
  Plan plan;
  plan.schedule = schedule;
  plan.micro_batches = 32;
  plan.interleave = schedule == Schedule::interleaved ? 2 : 1;
  const auto layers = static_cast<int>(gpt.layers.size());
  for (int index = 0; index < stages; ++index) {
    Stage& stage = plan.stages.emplace_back();
    for (int layer = layers * index / stages; layer < layers * (index + 1) / stages; ++layer) {
      const auto& names = gpt.layers[static_cast<size_t>(layer)];
      stage.nodes.insert(stage.nodes.end(), names.begin(), names.end());
    }
    const int groups = stages / plan.interleave, group = index % groups;
    for (int rank = ranks * group / groups; rank < ranks * (group + 1) / groups; ++rank) {
      stage.ranks.push_back(rank);
    }
    stage.predicted = Prediction{.rows = 4, .forward_ns = 20'000'000, .backward_ns = 40'000'000};
  }
  return plan;
}

void lower_gpt(benchmark::State& state, Schedule schedule) {
  const Gpt gpt(24);
  const auto stages = static_cast<int>(state.range(0)), ranks = static_cast<int>(state.range(1));
  const Plan plan = plan_of(gpt, stages, ranks, schedule);
  const std::vector<int64_t> rows(static_cast<size_t>(ranks), 32);
  for (auto _ : state) {
    benchmark::DoNotOptimize(lower(plan, gpt.graph, rows, /*training=*/true));
  }
  const Program program = lower(plan, gpt.graph, rows, /*training=*/true);
  state.SetLabel(std::to_string(program.transfers.size()) + " transfers");
}

void BM_OneForwardOneBackward(benchmark::State& state) { lower_gpt(state, Schedule::one_f_one_b); }
void BM_FillDrain(benchmark::State& state) { lower_gpt(state, Schedule::gpipe); }
void BM_Interleaved(benchmark::State& state) { lower_gpt(state, Schedule::interleaved); }
void sizes(benchmark::internal::Benchmark* each) {
  each->ArgNames({"stages", "ranks"})->Unit(benchmark::kMillisecond);
  each->Args({8, 8})->Args({4, 8})->Args({2, 8})->Args({1, 8});
  each->Args({8, 64})->Args({4, 64})->Args({2, 64})->Args({1, 64});
}
BENCHMARK(BM_OneForwardOneBackward)->Apply(sizes);
BENCHMARK(BM_FillDrain)->Apply(sizes);
BENCHMARK(BM_Interleaved)
    ->ArgNames({"stages", "ranks"})
    ->Unit(benchmark::kMillisecond)
    ->Args({8, 8})
    ->Args({16, 8})
    ->Args({8, 64})
    ->Args({16, 64});

}  // namespace
}  // namespace rannc::plan
