#include <gtest/gtest.h>

#include <utility>

#include "rannc/cost/device_model.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

/// One flop and one byte per ns and 5 ns per kernel; convolutions at half, attention at a fourth,
/// reductions at a fifth, gathers at a tenth of that; bfloat16 twice as fast.
DeviceModel unit() {
  DeviceModel device;
  device.name = "unit";
  device.float32 = {1e9, /*matmul=*/1, /*convolution=*/0.5, /*attention=*/0.25, /*recurrent=*/1};
  device.bfloat16.flops_per_s = 2e9;
  device.memory = {1e9, /*pointwise=*/1, /*reduction=*/0.2, /*gather=*/0.1};
  device.kernel_ns = 5;
  device.memory_bytes = 1e9;
  return device;
}
const DeviceModel kUnit = unit();

TEST(DeviceModel, KnowsTheCatalogueAndNamesTheClosest) {
  EXPECT_EQ(device_model("h200").memory_bytes, 141e9);
  EXPECT_GT(device_model("h100").bfloat16.flops_per_s, device_model("a100").bfloat16.flops_per_s);
  try {
    (void)device_model("h10");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "unknown device 'h10'; did you mean 'h100'? Known: v100, a100, h100, h200, "
                 "h100-pcie, b200, a10, l4, l40s, mi300x, cpu");
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
  // gelu: reads and writes 10 * 128 floats; back, it reads what it saved, too.
  EXPECT_EQ(table.node[2][0].forward_ns, 10240 + 5);
  EXPECT_EQ(table.node[2][0].backward_ns, 15360 + 5);
  // matmul of two values: 2 * 1280 * 64 flops, two products back.
  EXPECT_EQ(table.node[3][0].forward_ns, 163840 + 5);
  EXPECT_EQ(table.node[3][0].backward_ns, 2 * (163840 + 5));
}

TEST(Estimate, ViewsCostNothingAndGathersDoNotReadTheirTable) {
  const CostTable table = estimate(kGraph, kUnit, {10});
  EXPECT_EQ(table.node[1][0], NodeCost{});
  // embedding: 5120 bytes read and written at a tenth of the bandwidth; backward also passes over
  // the table of 512000 bytes.
  EXPECT_EQ(table.node[4][0].forward_ns, 102400 + 5);
  EXPECT_EQ(table.node[4][0].backward_ns, 10 * (5120 + 2 * 512000) + 5);
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

TEST(Estimate, WhatIsSavedOnTheHostTakesNoneOfTheDevicesMemory) {
  const ir::Graph graph = ir::parse(R"(graph "g"(%x) -> (%b)
  input x: float32[B, 4] apart(0) grad
  node copied = aten::_to_copy(%x, none, none, none, none, false, none) -> %h
    result h: float32[B, 4] apart(0) grad host
  node gelu = aten::gelu(%h, "none") -> %a
    result a: float32[B, 4] apart(0) grad host
  node drop = aten::dropout(%a, 0.5, true) -> %d
    result d: float32[B, 4] apart(0) grad host
  node back = aten::_to_copy(%d, none, none, none, none, false, none) -> %b
    result b: float32[B, 4] apart(0) grad
)");
  const CostTable table = estimate(graph, kUnit, {10});
  for (size_t node : {1, 2}) {
    EXPECT_EQ(table.node[node][0].saved_bytes, 0);
    EXPECT_EQ(table.node[node][0].workspace_bytes, 0);
    EXPECT_GT(table.node[node][0].backward_ns, 0);
  }
  EXPECT_EQ(table.node[3][0].workspace_bytes, 160);  // the gradient that comes in
}

TEST(Estimate, TakesSavedBytesAsGiven) {
  const std::vector<std::vector<int64_t>> saved(8, {7});
  EXPECT_EQ(estimate(kGraph, kUnit, {10}, saved).node[5][0].saved_bytes, 7);
}

/// The cost at 10 rows of the last node of `text`, a graph with one input x of [B, 4, 8, 8].
NodeCost cost_of(const std::string& text, const std::string& dtype = "float32",
                 const DeviceModel& device = kUnit) {
  const ir::Graph graph = ir::parse("graph \"g\"(%x) -> (%y)\n  input x: " + dtype +
                                    "[B, 4, 8, 8] apart(0) grad\n" + text);
  return estimate(graph, device, {10}).node.back()[0];
}

TEST(Estimate, TakesTheRatesOfTheKindAndTheType) {
  // 3 x 3 from 4 channels to 2, x being 10 * 256 floats: 2 * 10 * 2 * 64 * 4 * 9 flops = 92160, at
  // half the rate; 2 products back, and a pass over the gradient for the bias: 5120 bytes at 1/5.
  const std::string convolution = R"(  parameter w: float32[2, 4, 3, 3] grad
  parameter b: float32[2] grad
  node c = aten::conv2d(%x, %w, %b, [1, 1], [1, 1], [1, 1], 1) -> %y
    result y: float32[B, 2, 8, 8] apart(0) grad
)";
  EXPECT_EQ(cost_of(convolution).forward_ns, 2 * 92160 + 5);
  EXPECT_EQ(cost_of(convolution).backward_ns, 2 * (2 * 92160 + 5) + 5 * 5120 + 5);
  // Convolutions in float32 use TF32 where there is one.
  DeviceModel tf32 = kUnit;
  tf32.tf32_flops_per_s = 2e9;
  EXPECT_EQ(cost_of(convolution, "float32", tf32).forward_ns, 92160 + 5);

  // Attention of 8 queries to 8 keys of 8 numbers, 40 heads: 2 * 320 * 8 * (8 + 8) flops = 81920 at
  // a fourth of the rate; half of it when causal; five products back instead of two.
  const std::string attention =
      "  node a = aten::scaled_dot_product_attention(%x, %x, %x, none, 0.0, {}, none, false) -> "
      "%y\n"
      "    result y: float32[B, 4, 8, 8] apart(0) grad\n";
  const auto causal = [&](const std::string& flag) {
    return std::string(attention).replace(attention.find("{}"), 2, flag);
  };
  EXPECT_EQ(cost_of(causal("false")).forward_ns, 4 * 81920 + 5);
  EXPECT_EQ(cost_of(causal("true")).forward_ns, 2 * 81920 + 5);
  EXPECT_EQ(cost_of(causal("true")).backward_ns, 5 * 81920 + 5);

  // A product in bfloat16: 2 * 10 * 256 * 8 flops at twice the rate.
  const std::string linear = R"(  parameter w: bfloat16[8, 8] grad
  node l = aten::linear(%x, %w, none) -> %y
    result y: bfloat16[B, 4, 8, 8] apart(0) grad
)";
  EXPECT_EQ(cost_of(linear, "bfloat16").forward_ns, 20480 + 5);

  // With 12 results, of which tensor cores cannot read pieces of 8, a fourth as fast.
  const std::string unaligned = R"(  parameter w: bfloat16[12, 8] grad
  node l = aten::linear(%x, %w, none) -> %y
    result y: bfloat16[B, 4, 8, 12] apart(0) grad
)";
  DeviceModel slow = kUnit;
  slow.bfloat16.unaligned = 0.25;
  EXPECT_EQ(cost_of(unaligned, "bfloat16", slow).forward_ns, 4 * 30720 + 5);
  EXPECT_EQ(cost_of(linear, "bfloat16", slow).forward_ns, 20480 + 5);

  // Batch normalisation of 16 bits has a rate of its own.
  const std::string norm =
      "  node n = aten::batch_norm(%x, none, none, none, none, true, 0.1, 1e-05, true) -> %y\n"
      "    result y: {}[B, 4, 8, 8] apart(0) grad\n";
  const auto of = [&](const std::string& dtype) {
    return std::string(norm).replace(norm.find("{}"), 2, dtype);
  };
  slow.memory.batch_norm = 0.1;
  EXPECT_EQ(cost_of(of("bfloat16"), "bfloat16", slow).forward_ns, 10 * 10240 * 1.5 + 5);
  EXPECT_EQ(cost_of(of("bfloat16"), "bfloat16").forward_ns, 5 * 10240 * 1.5 + 5);
  EXPECT_EQ(cost_of(of("float32"), "float32", slow).forward_ns, 5 * 20480 * 1.5 + 5);
}

TEST(Estimate, CountsAGroupedProductAsOneOfTheSameRows) {
  // 10 rows of 64 numbers with one of three 64 x 128 matrices each: 2 * 10 * 128 * 64 flops.
  ir::Graph graph = ir::parse(R"(graph "g"(%x, %o) -> (%y)
  input x: float32[B, 64] apart(0) grad
  input o: int32[3]
  parameter w: float32[3, 64, 128] grad
  node grouped = aten::_grouped_mm(%x, %w, %o, none, none) -> %y
    result y: float32[B, 128] mixed grad
)");
  const NodeCost cost = estimate(graph, kUnit, {10}).node.back()[0];
  EXPECT_EQ(cost.forward_ns, 163840 + 5);
  EXPECT_EQ(cost.backward_ns, 2 * (163840 + 5));

  // A library's own name for it costs the same.
  graph.nodes[0].like = std::exchange(graph.nodes[0].op, "mine::product");
  EXPECT_EQ(estimate(graph, kUnit, {10}).node.back()[0], cost);
}

TEST(Estimate, CountsThePassesOfReductions) {
  // 10 * 256 floats in and out, at a fifth of the bandwidth; back, x and the gradient come in
  // twice and one gradient goes out.
  EXPECT_EQ(cost_of(R"(  node n = aten::layer_norm(%x, [8], none, none, 1e-05, true) -> %y
    result y: float32[B, 4, 8, 8] apart(0) grad
)"),
            (NodeCost{5 * 20480 + 5, 5 * 51200 + 5, 10240, 20480}));
}

TEST(Estimate, HidesLaunchesBehindLongKernelsOnly) {
  DeviceModel device = kUnit;
  device.call_ns = 30'000;
  const std::string neg = R"(  node n = aten::neg(%x) -> %y
    result y: float32[B, 4, 8, 8] apart(0) grad
)";
  EXPECT_EQ(cost_of(neg, "float32", device).forward_ns, 30'000);
  device.call_ns = 20'000;
  EXPECT_EQ(cost_of(neg, "float32", device).forward_ns, 20480 + 5);
}

TEST(Estimate, ChargesPartsForTheirBackwardAndReshapesOnlyWhenTheyCopy) {
  const std::string part = R"(  node n = aten::select.int(%x, 1, 0) -> %y
    result y: float32[B, 8, 8] apart(0) grad shares %x
)";
  // The gradient of the part is read, that of the whole is written.
  EXPECT_EQ(cost_of(part), (NodeCost{0, 2560 + 10240 + 5, 0, 12800}));
  const std::string reshape = R"(  node n = aten::reshape(%x, [B, 256]) -> %y
    result y: float32[B, 256] apart(0) grad)";
  EXPECT_EQ(cost_of(reshape + " shares %x\n"), NodeCost{});
  EXPECT_EQ(cost_of(reshape + "\n").forward_ns, 20480 + 5);
}

TEST(TrainingWork, CountsProductsOfForwardAndBackwardAtEachPeak) {
  // linear: 2 * 64 * 128 a row, twice, as the input wants no gradient; matmul of [2, 64] with
  // [2, 64] as written here: 2 * 128 * 64 a row, three times.
  const MatrixWork work = training_work(kGraph, kUnit, 10);
  EXPECT_EQ(work.flops, 10.0 * (2 * 2 * 64 * 128 + 3 * 2 * 128 * 64));
  EXPECT_DOUBLE_EQ(work.peak_s, work.flops / 1e9);
}

}  // namespace
}  // namespace rannc::cost
