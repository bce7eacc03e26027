#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "plan/graphs.h"
#include "rannc/plan/program.h"
#include "rannc/util/error.h"

namespace rannc::plan {

/// Plans, graphs and batches by chance: three schedules, 2 to 8 ranks, some of them idle, stages of
/// several nodes and uneven replicas, skips between stages, tied parameters, parameters that other
/// ranks hold, empty shares, running statistics and statistics of the whole batch, several dtypes
/// and buckets, outputs of all kinds, with and without predictions.
class RandomPrograms {
 public:
  explicit RandomPrograms(unsigned seed) : random_(seed) {}

  struct Case {
    Plan plan;
    ir::Graph graph;
    Program program;
  };

  Case next() {
    Case made;
    make_plan(made.plan);
    made.graph = make_graph(made.plan);
    verify(made.plan, made.graph, world_);
    const bool training = !chance(6);
    const Outputs outputs = chance(3) ? Outputs::all : Outputs::loss;
    made.program = lower(made.plan, made.graph, make_rows(), training, outputs, holders_);
    return made;
  }

  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  /// Once in so many times.
  bool chance(int many) { return pick(1, many) == 1; }

 private:
  void make_plan(Plan& plan) {
    world_ = pick(2, 8);
    const Schedule schedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved};
    plan.schedule = schedules[pick(0, 2)];
    plan.micro_batches = pick(1, 6);
    std::vector<Rank> ranks(static_cast<size_t>(world_));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::ranges::shuffle(ranks, random_);
    size_t taken = 0;
    const auto take = [&](int count) {
      const auto first = ranks.begin() + static_cast<ptrdiff_t>(taken);
      taken += static_cast<size_t>(count);
      return std::vector<Rank>(first, first + count);
    };
    if (plan.schedule == Schedule::interleaved) {
      const int groups = pick(2, std::min(world_, 4));
      plan.interleave = pick(2, 3);
      plan.micro_batches = groups * pick(1, 3);
      const int replicas = pick(1, world_ / groups);
      for (int group = 0; group < groups; ++group) plan.stages.push_back(stage({}, take(replicas)));
      for (int more = groups; more < groups * plan.interleave; ++more) {
        plan.stages.push_back(plan.stages[static_cast<size_t>(more - groups)]);
      }
    } else {
      const int stages = pick(1, std::min(world_, 5));
      for (int left = stages; left > 0; --left) {
        const int most = world_ - static_cast<int>(taken) - (left - 1);
        plan.stages.push_back(stage({}, take(pick(1, std::min(most, 4)))));
      }
    }
    const int scale = chance(3) ? 1'000'000 : 4;
    if (!chance(3)) {
      for (Stage& each : plan.stages) {
        each.predicted = Prediction{.forward_ns = pick(0, scale), .backward_ns = pick(0, scale)};
      }
    }
    if (!chance(3)) plan.bucket_bytes = 16 * pick(1, 3);
  }

  ir::Graph make_graph(Plan& plan) {
    GraphMaker maker;
    const bool whole_batch = plan.schedule != Schedule::interleaved && chance(6);
    if (whole_batch) plan.micro_batches = 1;
    const auto x = maker.input("x", /*requires_grad=*/chance(2));
    const auto mask = maker.input("mask");
    std::vector<ir::ValueId> values, parameters;
    ir::ValueId before = x;
    const size_t stages = plan.stages.size();
    for (size_t index = 0; index < stages; ++index) {
      const int nodes = pick(1, 3);
      for (int node = 0; node < nodes; ++node) {
        const std::string name = "n" + std::to_string(index) + "_" + std::to_string(node);
        std::vector<ir::ValueId> operands{before};
        for (int count = pick(0, 2); count > 0; --count) {
          parameters.push_back(maker.parameter(name + ".w" + std::to_string(count)));
          if (chance(4)) maker.graph[parameters.back()].dtype = ir::DType::float16;
          operands.push_back(chance(4) ? maker.row_free_node(name + "_t" + std::to_string(count),
                                                             {parameters.back()})
                                       : parameters.back());
        }
        if (!parameters.empty() && chance(5)) operands.push_back(one_of(parameters));
        if (!values.empty() && chance(4)) operands.push_back(one_of(values));
        if (chance(6)) operands.push_back(mask);
        const bool loss = index + 1 == stages && node + 1 == nodes &&
                          (plan.schedule != Schedule::gpipe || chance(2));
        const auto kind = chance(3) ? ir::RowKind::sum : ir::RowKind::mean;
        const bool norm = !loss && chance(whole_batch ? 2 : 6);
        before = loss   ? maker.reduced(name, operands, kind)
                 : norm ? normalise(maker, name, before, whole_batch)
                        : maker.node(name, operands);
        plan.stages[index].nodes.push_back(name);
        if (loss) maker.graph.outputs.push_back(before);
        if (!loss) values.push_back(before);
      }
    }
    for (int count = pick(maker.graph.outputs.empty() ? 1 : 0, 2); count > 0 && !values.empty();
         --count) {
      maker.graph.outputs.push_back(one_of(values));
    }
    if (maker.graph.outputs.empty()) maker.graph.outputs.push_back(before);
    hand_out(maker.graph, parameters);
    return maker.graph;
  }

  ir::ValueId normalise(GraphMaker& maker, const std::string& name, ir::ValueId input,
                        bool whole_batch) {
    // Several values per row and channel, so that a share of one row has a variance.
    maker.graph[input].dims = {{0, 1}, {4, 0}, {3, 0}};
    const auto mean = maker.buffer(name + ".mean"), variance = maker.buffer(name + ".var");
    const auto result = maker.node(name, {input});
    ir::Node& node = maker.graph.nodes.back();
    node.op = "aten::batch_norm";
    node.inputs.insert(node.inputs.end(),
                       {ir::None{}, ir::None{}, mean, variance, true, 0.1, 1e-5, false});
    node.writes = {mean, variance};
    node.whole_batch = whole_batch;
    return result;
  }

  void hand_out(const ir::Graph& graph, const std::vector<ir::ValueId>& parameters) {
    holders_.clear();
    if (parameters.empty()) return;
    for (int count = pick(0, 2); count > 0; --count) {
      holders_[graph[one_of(parameters)].name] = {pick(0, world_ - 1)};
    }
  }

  std::vector<int64_t> make_rows() {
    std::vector<int64_t> rows(static_cast<size_t>(world_));
    for (int64_t& count : rows) count = chance(3) ? 0 : pick(1, 6);
    rows[static_cast<size_t>(pick(0, world_ - 1))] += pick(1, 3);
    return rows;
  }

  ir::ValueId one_of(const std::vector<ir::ValueId>& values) {
    return values[static_cast<size_t>(pick(0, static_cast<int>(values.size()) - 1))];
  }

  std::mt19937 random_;
  int world_ = 2;
  ParameterHolders holders_;
};

}  // namespace rannc::plan
