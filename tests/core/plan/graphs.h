#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/plan.h"

namespace rannc::plan {

/// Graphs by hand: values of `width` float32 per row, whose rows stay apart unless said otherwise.
class GraphMaker {
 public:
  ir::Graph graph;

  ir::ValueId input(const std::string& name, bool requires_grad = false) {
    const ir::ValueId id = graph.add_value(rows_apart(name, ir::ValueKind::input, requires_grad));
    graph.inputs.push_back(id);
    return id;
  }
  ir::ValueId unbatched_input(const std::string& name) {
    const ir::ValueId id = graph.add_value(fixed(name, ir::ValueKind::input, false));
    graph.inputs.push_back(id);
    return id;
  }
  ir::ValueId parameter(const std::string& name) {
    return graph.add_value(fixed(name, ir::ValueKind::parameter, true));
  }
  ir::ValueId buffer(const std::string& name) {
    return graph.add_value(fixed(name, ir::ValueKind::buffer, false));
  }

  /// A node with one result that is named after it.
  ir::ValueId node(const std::string& name, const std::vector<ir::ValueId>& operands) {
    return add(name, operands, rows_apart(name + "_out", ir::ValueKind::result, true));
  }
  ir::ValueId row_free_node(const std::string& name, const std::vector<ir::ValueId>& operands) {
    return add(name, operands, fixed(name + "_out", ir::ValueKind::result, true));
  }
  /// A scalar over the rows: mean, sum or mixed.
  ir::ValueId reduced(const std::string& name, const std::vector<ir::ValueId>& operands,
                      ir::RowKind kind) {
    ir::Value value = fixed(name + "_out", ir::ValueKind::result, true);
    value.dims.clear();
    value.rows.kind = kind;
    return add(name, operands, std::move(value));
  }

 private:
  static constexpr int64_t kWidth = 4;

  static ir::Value fixed(const std::string& name, ir::ValueKind kind, bool requires_grad) {
    ir::Value value;
    value.name = name;
    value.kind = kind;
    value.requires_grad = requires_grad;
    value.dims = {{kWidth, 0}};
    return value;
  }
  static ir::Value rows_apart(const std::string& name, ir::ValueKind kind, bool requires_grad) {
    ir::Value value = fixed(name, kind, requires_grad);
    value.dims = {{0, 1}, {kWidth, 0}};
    value.rows = {.kind = ir::RowKind::apart};
    return value;
  }
  ir::ValueId add(const std::string& name, const std::vector<ir::ValueId>& operands,
                  ir::Value result) {
    const ir::ValueId id = graph.add_value(std::move(result));
    ir::Node node;
    node.name = name;
    node.op = "aten::test";
    const size_t dot = name.rfind('.');
    node.module = dot == std::string::npos ? "" : name.substr(0, dot);
    for (ir::ValueId operand : operands) node.inputs.emplace_back(operand);
    node.outputs = {id};
    graph.add_node(std::move(node));
    return id;
  }
};

/// x -> n0 -> n1 -> ... -> n<nodes-1>, each with a parameter w<i>. The last is a mean if `loss`.
inline ir::Graph chain(int nodes, bool loss = false) {
  GraphMaker maker;
  ir::ValueId value = maker.input("x");
  for (int node = 0; node < nodes; ++node) {
    const std::string number = std::to_string(node);
    const ir::ValueId weight = maker.parameter("w" + number);
    value = loss && node + 1 == nodes
                ? maker.reduced("n" + number, {value, weight}, ir::RowKind::mean)
                : maker.node("n" + number, {value, weight});
  }
  maker.graph.outputs = {value};
  return maker.graph;
}

inline Stage stage(std::vector<std::string> nodes, std::vector<Rank> ranks) {
  Stage made;
  made.nodes = std::move(nodes);
  made.ranks = std::move(ranks);
  return made;
}

/// One node of chain() per stage, with as many ranks as said, numbered through.
inline Plan chain_plan(const std::vector<int>& replicas, int64_t micro_batches,
                       Schedule schedule = Schedule::gpipe) {
  Plan plan;
  plan.schedule = schedule;
  plan.micro_batches = micro_batches;
  Rank next = 0;
  for (size_t index = 0; index < replicas.size(); ++index) {
    Stage made = stage({"n" + std::to_string(index)}, {});
    for (int replica = 0; replica < replicas[index]; ++replica) made.ranks.push_back(next++);
    plan.stages.push_back(made);
  }
  return plan;
}

/// One node of chain() per stage, `interleave` stages on each of `groups` ranks.
inline Plan interleaved_plan(int groups, int interleave, int64_t micro_batches) {
  Plan plan = chain_plan(std::vector<int>(static_cast<size_t>(groups * interleave), 1),
                         micro_batches, Schedule::interleaved);
  plan.interleave = interleave;
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    plan.stages[index].ranks = {static_cast<Rank>(index) % groups};
  }
  return plan;
}

}  // namespace rannc::plan
