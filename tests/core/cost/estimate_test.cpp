#include <gtest/gtest.h>

#include "rannc/cost/device_model.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

/// One flop and one byte per ns at full efficiency; half precision twice as fast.
const DeviceModel kUnit{"unit", 1e9, 2e9, 1e9, /*launch_ns=*/5, /*efficiency=*/1, 1e9};

TEST(DeviceModel, KnowsTheCatalogueAndNamesTheClosest) {
  EXPECT_EQ(device_model("h200").memory_bytes, 141e9);
  EXPECT_GT(device_model("h100").half_flops_per_s, device_model("a100").half_flops_per_s);
  try {
    (void)device_model("h10");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "unknown device 'h10'; did you mean 'h100'? Known: v100, a100, h100, h200, cpu");
  }
}

const ir::Graph kGraph = ir::parse(R"(graph "g"(%x, %i) -> (%s)
  input x: float32[B, 64] apart(0)
  input i: int64[B] apart(0)
  parameter w: float32[128, 64] grad
  parameter e: float32[1000, 128] grad
  node linear = aten::linear(%x, %w, none) -> %h
    result h: float32[B, 128] apart(0) grad
  node view = aten::view(%h, [B, 2, 64]) -> %v
    result v: float32[B, 2, 64] apart(0) grad shares %h
  node gelu = aten::gelu(%v, "none") -> %a
    result a: float32[B, 2, 64] apart(0) grad
  node matmul = aten::matmul(%a, %v) -> %m
    result m: float32[B, 2, 64] apart(0) grad
  node embed = aten::embedding(%e, %i, -1, false, false) -> %t
    result t: float32[B, 128] apart(0) grad
  node relu = aten::relu(%x) -> %r
    result r: float32[B, 64] apart(0)
  node frozen = aten::gelu(%v, "none") -> %f no_grad
    result f: float32[B, 2, 64] apart(0)
  node drop = aten::dropout(%m, 0.5, true) -> %s
    result s: float32[B, 2, 64] apart(0) grad
)");

TEST(Estimate, TakesTheLargerOfComputeAndTrafficPlusALaunch) {
  const CostTable table = estimate(kGraph, kUnit, {10, 20});
  EXPECT_EQ(table.rows, (std::vector<int64_t>{10, 20}));
  // linear: 2 * 10 * 64 * 128 flops; only w wants a gradient: one product.
  EXPECT_EQ(table.node[0][0].forward_ns, 163840 + 5);
  EXPECT_EQ(table.node[0][1].forward_ns, 327680 + 5);
  EXPECT_EQ(table.node[0][0].backward_ns, 163840 + 5);
  // gelu: reads and writes 10 * 128 floats; the same back.
  EXPECT_EQ(table.node[2][0].forward_ns, 10240 + 5);
  EXPECT_EQ(table.node[2][0].backward_ns, 10240 + 5);
  // matmul of two values: 2 * 1280 * 64 flops, two products back.
  EXPECT_EQ(table.node[3][0].forward_ns, 163840 + 5);
  EXPECT_EQ(table.node[3][0].backward_ns, 327680 + 5);
}

TEST(Estimate, ViewsCostNothingAndGathersDoNotReadTheirTable) {
  const CostTable table = estimate(kGraph, kUnit, {10});
  EXPECT_EQ(table.node[1][0], NodeCost{});
  // embedding: 5120 bytes read and written; backward also passes over the table of 512000 bytes.
  EXPECT_EQ(table.node[4][0].forward_ns, 10240 + 5);
  EXPECT_EQ(table.node[4][0].backward_ns, 5120 + 2 * 512000 + 5);
}

TEST(Estimate, HasNoBackwardWhereNoGradientFlows) {
  const CostTable table = estimate(kGraph, kUnit, {10});
  for (size_t node : {5, 6}) {
    EXPECT_EQ(table.node[node][0].backward_ns, 0);
    EXPECT_EQ(table.node[node][0].saved_bytes, 0);
    EXPECT_GT(table.node[node][0].forward_ns, 0);
  }
}

TEST(Estimate, ChargesEachSavedStorageOnceToItsFirstUser) {
  const CostTable table = estimate(kGraph, kUnit, {10});
  EXPECT_EQ(table.node[0][0].saved_bytes, 2560);  // x, not w
  EXPECT_EQ(table.node[2][0].saved_bytes, 5120);  // v is h
  EXPECT_EQ(table.node[3][0].saved_bytes, 5120);  // a; v is charged already
  EXPECT_EQ(table.node[4][0].saved_bytes, 80);    // indices
  EXPECT_EQ(table.node[7][0].saved_bytes, 1280);  // one byte per element
}

TEST(Estimate, TakesSavedBytesAsGiven) {
  const std::vector<std::vector<int64_t>> saved(8, {7});
  EXPECT_EQ(estimate(kGraph, kUnit, {10}, saved).node[5][0].saved_bytes, 7);
}

}  // namespace
}  // namespace rannc::cost
