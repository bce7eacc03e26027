#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "partition/evaluate/detail.h"

// Section 6 of docs/planner-files.md; for profiles of version 2, moments.cpp.
namespace rannc::partition::evaluation {
namespace {

/// What one stage keeps for one micro-batch, and what it exchanges.
struct FlowBytes {
  double kept = 0;      ///< in flight: what is saved outside of segments, and what these take
  double again = 0;     ///< the most that a segment saves when it runs again
  double in = 0;        ///< from other stages
  double graph_in = 0;  ///< graph inputs
  double out = 0;       ///< used by other stages
};

}  // namespace

StateBytes state_bytes(const Layout& layout, const std::vector<size_t>& stages) {
  std::set<uint32_t> params;
  for (size_t stage : stages) {
    for (uint32_t node : layout.nodes[stage]) {
      const std::vector<uint32_t>& used = layout.profile.nodes[node].params;
      params.insert(used.begin(), used.end());
    }
  }
  StateBytes bytes;
  for (uint32_t index : params) {
    const cost::ProfileParam& param = layout.profile.params[index];
    bytes.param += param.bytes;
    if (!param.trainable) continue;
    bytes.gradient += param.bytes * layout.request.gradient_bytes_per_param_byte;
    bytes.optimizer += param.optimizer_bytes >= 0
                           ? param.optimizer_bytes
                           : param.bytes * layout.request.optimizer_bytes_per_param_byte;
    bytes.optimizer += param.bytes * layout.request.master_bytes_per_param_byte;
  }
  if (layout.request.shard_optimizer) {
    bytes.optimizer /= layout.mesh(stages.front()).replicas();
  }
  return bytes;
}

namespace {

std::vector<FlowBytes> flow_bytes(const Layout& layout) {
  std::vector<FlowBytes> flows(layout.stages());
  std::set<std::tuple<bool, uint32_t, uint32_t, size_t>> taken;  // value, stage that uses it
  std::set<std::tuple<bool, uint32_t, uint32_t, size_t>> kept;   // by a segment of that stage
  std::set<std::pair<uint32_t, uint32_t>> given;                 // value
  std::map<uint32_t, double> saved;                              // by segment
  for (uint32_t index = 0; index < layout.profile.nodes.size(); ++index) {
    const cost::ProfileNode& node = layout.profile.nodes[index];
    const size_t stage = layout.stage_of[index];
    const double rows = layout.rows[stage];
    const double saves = cost::cost_at(node.saved_bytes, layout.profile.rows, rows);
    if (layout.runs_again(index)) {
      double& of_segment = saved[layout.segment_of[index]] += saves;
      flows[stage].again = std::max(flows[stage].again, of_segment);
    } else {
      flows[stage].kept += saves;
    }
    for (const cost::ProfileUse& use : node.inputs) {
      const bool own = !use.is_input && layout.segment_of[use.node] == layout.segment_of[index];
      if (layout.runs_again(index) && !own &&
          kept.emplace(use.is_input, use.node, use.output, stage).second) {
        flows[stage].kept += use.is_input
                                 ? layout.profile.inputs[use.node].size.at(rows)
                                 : layout.profile.nodes[use.node].outputs[use.output].size.at(rows);
      }
      if (!use.is_input && layout.stage_of[use.node] == stage) continue;
      const bool first = taken.emplace(use.is_input, use.node, use.output, stage).second;
      if (use.is_input) {
        if (first) flows[stage].graph_in += layout.profile.inputs[use.node].size.at(rows);
        continue;
      }
      const cost::Size& size = layout.profile.nodes[use.node].outputs[use.output].size;
      if (first) flows[stage].in += size.at(rows);
      if (given.emplace(use.node, use.output).second) {
        const size_t producer = layout.stage_of[use.node];
        flows[producer].out += size.at(layout.rows[producer]);
      }
    }
  }
  return flows;
}

/// The most that the micro-batches in flight keep on one rank of `group`, and per stage the
/// largest number of them.
double peak_in_flight(const Layout& layout, const std::vector<Action>& order,
                      const std::vector<FlowBytes>& flows, std::vector<int64_t>& most) {
  std::vector<int64_t> count(layout.stages(), 0);
  std::vector<size_t> stages;
  for (const Action& action : order) {
    if (std::ranges::find(stages, action.stage) == stages.end()) stages.push_back(action.stage);
  }
  double peak = 0;
  for (const Action& action : order) {
    // A backward frees its micro-batch only when it has ended.
    if (action.backward) {
      --count[action.stage];
      continue;
    }
    most[action.stage] = std::max(most[action.stage], ++count[action.stage]);
    double bytes = 0;
    for (size_t stage : stages) {
      bytes += static_cast<double>(count[stage]) * flows[stage].kept;
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace

void evaluate_memory(const Layout& layout, const std::vector<std::vector<Action>>& orders,
                     std::vector<StageEvaluation>& stages) {
  if (layout.profile.version > 1) return evaluate_moments(layout, orders, stages);
  const std::vector<FlowBytes> flows = flow_bytes(layout);
  std::vector<int64_t> in_flight(layout.stages(), 0);
  std::vector<double> group_peak;
  for (const std::vector<Action>& order : orders) {
    group_peak.push_back(peak_in_flight(layout, order, flows, in_flight));
  }
  for (size_t s = 0; s < layout.stages(); ++s) {
    StageEvaluation& stage = stages[s];
    const StateBytes state = state_bytes(layout, {s});
    stage.in_bytes = flows[s].in;
    stage.graph_input_bytes = flows[s].graph_in;
    stage.out_bytes = flows[s].out;
    stage.param_bytes = state.param;
    stage.gradient_bytes = state.gradient;
    stage.optimizer_bytes = state.optimizer;
    stage.activation_bytes = static_cast<double>(in_flight[s]) * flows[s].kept + flows[s].again;
    stage.buffer_bytes = 2 * (flows[s].in + flows[s].out);
    for (uint32_t node : layout.nodes[s]) {
      stage.workspace_bytes =
          std::max(stage.workspace_bytes, cost::cost_at(layout.profile.nodes[node].workspace_bytes,
                                                        layout.profile.rows, layout.rows[s]));
    }
  }
  // Each rank holds all stages of its group: one, unless the schedule is interleaved.
  for (size_t group = 0; group < layout.groups; ++group) {
    std::vector<size_t> members;
    double recomputed = 0, buffers = 0, workspace = 0;
    for (size_t s = group; s < layout.stages(); s += layout.groups) {
      members.push_back(s);
      recomputed = std::max(recomputed, flows[s].again);
      buffers += stages[s].buffer_bytes;
      workspace = std::max(workspace, stages[s].workspace_bytes);
    }
    const StateBytes state = state_bytes(layout, members);
    for (size_t s : members) {
      stages[s].peak_bytes = state.param + state.gradient + state.optimizer + group_peak[group] +
                             recomputed + buffers + workspace;
    }
  }
}

}  // namespace rannc::partition::evaluation
