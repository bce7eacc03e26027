#include "rannc/cost/scaled_estimate.h"

#include <gtest/gtest.h>

#include "rannc/cost/device_model.h"
#include "rannc/ir/text.h"

namespace rannc::cost {
namespace {

const ir::Graph kGraph = ir::parse(R"(graph "g"(%x) -> (%s)
  input x: float32[B, 64] apart(0)
  parameter w: float32[64, 64] grad
  node first = aten::linear(%x, %w, none) -> %h
    result h: float32[B, 64] apart(0) grad
  node view = aten::view(%h, [B, 2, 32]) -> %v
    result v: float32[B, 2, 32] apart(0) grad shares %h
  node gelu = aten::gelu(%v, "none") -> %a
    result a: float32[B, 2, 32] apart(0) grad
  node tanh = aten::tanh(%a) -> %t
    result t: float32[B, 2, 32] apart(0) grad
  node frozen = aten::tanh(%a) -> %f no_grad
    result f: float32[B, 2, 32] apart(0)
  node second = aten::matmul(%t, %t) -> %s
    result s: float32[B, 2, 2] apart(0) grad
)");
constexpr ir::NodeId kFirst{0}, kView{1}, kTanh{3}, kFrozen{4}, kSecond{5};

CostTable model() { return estimate(kGraph, device_model("cpu"), {10, 20}); }

/// A device on which products take a hundredth of what the model says, and other operators a half;
/// views take their time, too, and the host 700 ns for a forward, 900 for a backward.
CostTable measured() {
  CostTable table = model();
  for (std::vector<NodeCost>& node : table.node) {
    const bool multiplies = &node == &table.node.front() || &node == &table.node.back();
    for (NodeCost& cost : node) {
      const bool flows = cost.backward_ns > 0;
      cost.forward_ns = multiplies ? cost.forward_ns / 100 : cost.forward_ns / 2;
      cost.backward_ns = multiplies ? cost.backward_ns / 100 : cost.backward_ns / 2;
      if (&node == &table.node[kView.index]) cost.forward_ns = 1'000'000;
      cost.forward_host_ns = 700;
      if (flows) cost.backward_host_ns = 900;
    }
  }
  return table;
}

/// What the others say of `nodes`.
ScaledEstimate without(std::vector<ir::NodeId> nodes) {
  std::vector<bool> is_measured(kGraph.nodes.size(), true);
  for (const ir::NodeId node : nodes) is_measured[node.index] = false;
  return {kGraph, measured(), is_measured};
}

void expect_near(const NodeCost& found, const NodeCost& model, double factor) {
  EXPECT_NEAR(static_cast<double>(found.forward_ns), factor * static_cast<double>(model.forward_ns),
              1 + 0.01 * static_cast<double>(found.forward_ns));
  EXPECT_NEAR(static_cast<double>(found.backward_ns),
              factor * static_cast<double>(model.backward_ns),
              1 + 0.01 * static_cast<double>(found.backward_ns));
}

TEST(ScaledEstimate, GoesByNodesThatMultiplyMatricesOrByThoseThatDoNot) {
  const ScaledEstimate estimate = without({kTanh, kSecond});
  for (size_t row : {0, 1}) {
    expect_near(estimate.costs(kTanh)[row], model().node[kTanh.index][row], 0.5);
    expect_near(estimate.costs(kSecond)[row], model().node[kSecond.index][row], 0.01);
  }
  EXPECT_EQ(estimate.basis(kTanh),
            "0.5 times what the model of a CPU says, as with 2 operators that could be timed");
}

TEST(ScaledEstimate, TheHostTakesAsLongForItAsForOthers) {
  const NodeCost tanh = without({kTanh}).costs(kTanh)[0];
  EXPECT_EQ(tanh.forward_host_ns, 700);
  EXPECT_EQ(tanh.backward_host_ns, 900);
  EXPECT_EQ(tanh.saved_bytes, 0);
  EXPECT_EQ(tanh.workspace_bytes, model().node[kTanh.index][0].workspace_bytes);
  EXPECT_EQ(without({kFrozen}).costs(kFrozen)[0].backward_host_ns, 0);
}

TEST(ScaledEstimate, GoesByAllWhereNoneOfItsKindCouldBeTimed) {
  const ScaledEstimate estimate = without({kFirst, kSecond});
  expect_near(estimate.costs(kSecond)[0], model().node[kSecond.index][0], 0.5);
  EXPECT_EQ(estimate.basis(kSecond),
            "0.5 times what the model of a CPU says, as with 3 operators that could be timed");
}

TEST(ScaledEstimate, IsTheModelWhereNothingCouldBeTimed) {
  const ScaledEstimate estimate(kGraph, measured(), std::vector<bool>(kGraph.nodes.size(), false));
  EXPECT_EQ(estimate.costs(kTanh)[0].forward_ns, model().node[kTanh.index][0].forward_ns);
  EXPECT_EQ(estimate.costs(kTanh)[0].forward_host_ns, 0);
  EXPECT_EQ(estimate.basis(kTanh), "what the model of a CPU says, as no other could be timed");
}

}  // namespace
}  // namespace rannc::cost
