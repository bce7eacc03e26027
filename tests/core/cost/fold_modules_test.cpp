#include "rannc/cost/fold_modules.h"

#include <gtest/gtest.h>

#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

ProfileNode node(std::string name, std::vector<ProfileUse> inputs, double ns,
                 std::vector<uint32_t> params = {}, std::vector<ProfileOutput> outputs = {}) {
  if (outputs.empty()) outputs = {{.size = {ns, 0}}};
  const std::string op = name.substr(name.rfind('.') + 1);
  return {.name = std::move(name),
          .op = op,
          .inputs = std::move(inputs),
          .params = std::move(params),
          .outputs = std::move(outputs),
          .forward_ns = {ns, 2 * ns},
          .backward_ns = {10 * ns, 20 * ns},
          .saved_bytes = {ns, ns},
          .workspace_bytes = {ns, 3 * ns},
          .group = {}};
}
ProfileUse input() { return {true, 0, 0}; }
ProfileUse of(uint32_t node, uint32_t output = 0) { return {false, node, output}; }

/// A residual block, x + mlp(x), below two containers; then the loss in the root.
GraphProfile block() {
  GraphProfile profile;
  profile.name = "Net";
  profile.rows = {1, 2};
  profile.inputs = {{"x", {4, 0}}};
  profile.params = {{"layers.0.fc.weight", 100}, {"layers.0.fc.bias", 10}, {"layers.0.g", 1}};
  profile.nodes = {
      node("layers.0.scale", {input()}, 1, {2}),
      node("layers.0.mlp.fc.linear", {of(0)}, 2, {0, 1}),
      node("layers.0.mlp.gelu", {of(1)}, 4),
      node("layers.0.mlp.max", {of(2)}, 8, {}, {{{8, 0}, true}, {{16, 0}, false}}),
      node("layers.0.add", {of(0), of(3), input()}, 16, {2}),
      node("layers.0.mul", {of(4), of(3, 1), of(0)}, 32, {2}),
      node("mean", {of(5)}, 64),
  };
  return profile;
}

TEST(FoldModules, MakesOneNodeOfEachRunOfAModule) {
  const GraphProfile folded = fold_modules(block());
  // The block's own operators lie before and after the modules that it calls: two nodes, since one
  // would be both before and after 'layers.0.mlp'.
  EXPECT_EQ(
      to_json(folded),
      R"({"format": "rannc-graph-profile", "version": 1, "name": "Net", "dtype": "float32", "rows": [1, 2],
 "inputs": [
  {"name": "x", "bytes_per_row": 4}],
 "params": [
  {"id": "layers.0.fc.weight", "bytes": 100},
  {"id": "layers.0.fc.bias", "bytes": 10},
  {"id": "layers.0.g", "bytes": 1}],
 "nodes": [
  {"name": "layers.0", "op": "scale", "inputs": ["x"], "params": ["layers.0.g"], "outputs": [{"bytes_per_row": 1}],
   "forward_ns": [1, 2], "backward_ns": [10, 20], "saved_bytes": [1, 1], "workspace_bytes": [1, 3]},
  {"name": "layers.0.mlp.fc", "op": "linear", "inputs": ["layers.0"], "params": ["layers.0.fc.weight", "layers.0.fc.bias"], "outputs": [{"bytes_per_row": 2}],
   "forward_ns": [2, 4], "backward_ns": [20, 40], "saved_bytes": [2, 2], "workspace_bytes": [2, 6]},
  {"name": "layers.0.mlp", "op": "module", "inputs": ["layers.0.mlp.fc"], "params": [], "outputs": [{"bytes_per_row": 8}, {"bytes_per_row": 16, "grad": false}],
   "forward_ns": [12, 24], "backward_ns": [120, 240], "saved_bytes": [12, 12], "workspace_bytes": [8, 24]},
  {"name": "layers.0_1", "op": "module", "inputs": ["layers.0", "layers.0.mlp", "x", "layers.0.mlp:1"], "params": ["layers.0.g"], "outputs": [{"bytes_per_row": 32}],
   "forward_ns": [48, 96], "backward_ns": [480, 960], "saved_bytes": [48, 48], "workspace_bytes": [32, 96]},
  {"name": "mean", "op": "mean", "inputs": ["layers.0_1"], "params": [], "outputs": [{"bytes_per_row": 64}],
   "forward_ns": [64, 128], "backward_ns": [640, 1280], "saved_bytes": [64, 64], "workspace_bytes": [64, 192]}]}
)");
}

TEST(FoldModules, CutsPathsToADepth) {
  const GraphProfile folded = fold_modules(block(), 2);
  ASSERT_EQ(folded.nodes.size(), 2U);
  EXPECT_EQ(folded.nodes[0].name, "layers.0");
  EXPECT_EQ(folded.nodes[0].op, "module");
  EXPECT_EQ(folded.nodes[0].inputs, (std::vector<ProfileUse>{input()}));
  // 1 + 2 + 4 + 8 + 16 + 32 at one row; the largest workspace, not the sum.
  EXPECT_EQ(folded.nodes[0].forward_ns, (std::vector<double>{63, 126}));
  EXPECT_EQ(folded.nodes[0].backward_ns, (std::vector<double>{630, 1260}));
  EXPECT_EQ(folded.nodes[0].saved_bytes, (std::vector<double>{63, 63}));
  EXPECT_EQ(folded.nodes[0].workspace_bytes, (std::vector<double>{32, 96}));
  EXPECT_EQ(folded.nodes[0].params, (std::vector<uint32_t>{2, 0, 1}));
  // Only what leaves the block: the product. The loss, which nobody reads, stays an output.
  EXPECT_EQ(folded.nodes[0].outputs, (std::vector<ProfileOutput>{{{32, 0}, true}}));
  EXPECT_EQ(folded.nodes[1].name, "mean");
  EXPECT_EQ(folded.nodes[1].inputs, (std::vector<ProfileUse>{of(0)}));
  EXPECT_EQ(folded.nodes[1].outputs, (std::vector<ProfileOutput>{{{64, 0}, true}}));
}

TEST(FoldModules, JoinsGroupsThatMeetInAModule) {
  GraphProfile profile = block();
  profile.nodes[0].group = "a";  // layers.0
  profile.nodes[2].group = "a";  // layers.0.mlp
  profile.nodes[3].group = "b";  // layers.0.mlp
  profile.nodes[5].group = "b";  // layers.0_1
  const GraphProfile folded = fold_modules(profile);
  ASSERT_EQ(folded.nodes.size(), 5U);
  EXPECT_EQ(folded.nodes[0].group, "layers.0.scale");
  EXPECT_EQ(folded.nodes[1].group, "");  // layers.0.mlp.fc
  EXPECT_EQ(folded.nodes[2].group, "layers.0.scale");
  EXPECT_EQ(folded.nodes[3].group, "layers.0.scale");
  EXPECT_EQ(folded.nodes[4].group, "");
  // At depth 2 the group lies inside one node.
  EXPECT_EQ(fold_modules(profile, 2).nodes[0].group, "");
}

TEST(FoldModules, KeepsNamesApart) {
  GraphProfile profile = block();
  profile.inputs[0].name = "layers.0";
  const GraphProfile folded = fold_modules(profile);
  EXPECT_EQ(folded.nodes[0].name, "layers.0_1");
  EXPECT_EQ(folded.nodes[3].name, "layers.0_2");
}

TEST(FoldModules, RefusesANegativeDepth) {
  EXPECT_THROW((void)fold_modules(block(), -1), ConfigError);
}

}  // namespace
}  // namespace rannc::cost
