#include "rannc/cost/scaled_estimate.h"

#include <fmt/format.h>

#include <cmath>

#include "cost/operator_class.h"
#include "rannc/cost/device_model.h"
#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

int64_t rounded(double ns) { return static_cast<int64_t>(std::llround(ns)); }

}  // namespace

ScaledEstimate::ScaledEstimate(const ir::Graph& graph, const CostTable& table,
                               const std::vector<bool>& is_measured)
    : graph_(graph), estimate_(cost::estimate(graph, device_model("cpu"), table.rows)) {
  RANNC_CHECK(is_measured.size() == graph.nodes.size(),
              fmt::format("{} of {} nodes", is_measured.size(), graph.nodes.size()));
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (!is_measured[index]) continue;
    of_kind_[multiplies({index}) ? 1 : 0].add(table.node[index], estimate_.node[index]);
    of_all_.add(table.node[index], estimate_.node[index]);
  }
}

std::vector<NodeCost> ScaledEstimate::costs(ir::NodeId node) const {
  const Sums& others = like(node);
  std::vector<NodeCost> costs = estimate_.node[node.index];
  for (NodeCost& cost : costs) {
    // What the host takes to issue a node hardly depends on its size.
    if (cost.forward_ns > 0 && others.forwards > 0) {
      cost.forward_host_ns = rounded(others.forward_host_ns / others.forwards);
    }
    if (cost.backward_ns > 0 && others.backwards > 0) {
      cost.backward_host_ns = rounded(others.backward_host_ns / others.backwards);
    }
    cost.forward_ns = rounded(static_cast<double>(cost.forward_ns) * others.factor());
    cost.backward_ns = rounded(static_cast<double>(cost.backward_ns) * others.factor());
    cost.saved_bytes = 0;
  }
  return costs;
}

std::string ScaledEstimate::basis(ir::NodeId node) const {
  const Sums& others = like(node);
  if (others.nodes == 0) return "what the model of a CPU says, as no other could be timed";
  return fmt::format(
      "{:.3g} times what the model of a CPU says, as with {} operator{} that could "
      "be timed",
      others.factor(), others.nodes, others.nodes == 1 ? "" : "s");
}

void ScaledEstimate::Sums::add(const std::vector<NodeCost>& measured,
                               const std::vector<NodeCost>& estimated) {
  double ns = 0;
  for (const NodeCost& cost : estimated)
    ns += static_cast<double>(cost.forward_ns + cost.backward_ns);
  if (ns == 0) return;  // a view says nothing of the device's speed
  ++nodes;
  estimated_ns += ns;
  for (const NodeCost& cost : measured) {
    measured_ns += static_cast<double>(cost.forward_ns + cost.backward_ns);
    forward_host_ns += static_cast<double>(cost.forward_host_ns);
    backward_host_ns += static_cast<double>(cost.backward_host_ns);
    ++forwards;
    if (cost.backward_ns > 0) ++backwards;
  }
}

bool ScaledEstimate::multiplies(ir::NodeId node) const {
  return cost::multiplies(operator_class(ir::known_op(graph_[node])).work);
}

const ScaledEstimate::Sums& ScaledEstimate::like(ir::NodeId node) const {
  const Sums& kind = of_kind_[multiplies(node) ? 1 : 0];
  return kind.nodes > 0 ? kind : of_all_;
}

}  // namespace rannc::cost
