#include <gtest/gtest.h>

#include "plan/graphs.h"
#include "rannc/plan/module_names.h"

namespace rannc::plan {
namespace {

const std::vector<std::string> kModel{"",         "embed",    "layers.0.attn", "layers.0.mlp",
                                      "layers.1", "layers.2", "head.norm",     "head.out"};

std::string module_names(const std::vector<std::string>& mine,
                         const std::vector<std::string>& all) {
  return ModuleNames(all).of(mine);
}

TEST(ModuleNames, FoldRunsOfWholeNumberedModules) {
  EXPECT_EQ(module_names({"embed", "layers.0.attn", "layers.0.mlp", "layers.1"}, kModel),
            "embed, layers.0-1");
}

TEST(ModuleNames, NameTheLargestWholeModule) {
  EXPECT_EQ(module_names(
                {"layers.0.attn", "layers.0.mlp", "layers.1", "layers.2", "head.norm", "head.out"},
                kModel),
            "layers, head");
  EXPECT_EQ(module_names(kModel, kModel), "model");
}

TEST(ModuleNames, SayHowFarAModuleIsHeldThatTwoStagesShare) {
  EXPECT_EQ(module_names({"embed", "layers.0.attn"}, kModel), "embed, layers.0 (up to attn)");
  EXPECT_EQ(module_names({"layers.0.mlp", "layers.1"}, kModel), "layers.0 (from mlp), layers.1");
  const std::vector<std::string> deep{"layers.0.attn.q", "layers.0.attn.o", "layers.0",
                                      "layers.0.norm",   "layers.0.mlp",    "layers.1"};
  EXPECT_EQ(module_names({"layers.0.attn.q"}, deep), "layers.0 (up to attn.q)");
  EXPECT_EQ(module_names({"layers.0.attn.o", "layers.0", "layers.0.norm"}, deep),
            "layers.0 (from attn.o up to norm)");
  EXPECT_EQ(module_names({"layers.0", "layers.0.mlp", "layers.1"}, deep),
            "layers.0 (from mlp), layers.1");
}

TEST(ModuleNames, TakeTheLongestListOfNumberedModules) {
  const std::vector<std::string> nested{"0.embed",      "0.blocks.0.up.0", "0.blocks.0.up.1",
                                        "0.blocks.1.a", "0.blocks.2.a",    "1"};
  EXPECT_EQ(module_names({"0.embed", "0.blocks.0.up.0"}, nested),
            "0.embed, 0.blocks.0 (up to up.0)");
  EXPECT_EQ(module_names({"0.blocks.0.up.1", "0.blocks.1.a"}, nested),
            "0.blocks.0 (from up.1), 0.blocks.1");
}

TEST(ModuleNames, LeaveOutWhatLiesBetweenModules) {
  const std::vector<std::string> model{"m.embed", "m", "m.layers.0", "m.layers.1", "m.norm", ""};
  EXPECT_EQ(module_names({"m.embed", "m", "m.layers.0"}, model), "m.embed, m.layers.0");
  EXPECT_EQ(module_names({"m.layers.1", "m.norm", ""}, model), "m.layers.1, m.norm");
  EXPECT_EQ(module_names({"m"}, model), "m (part)");
}

TEST(ModuleNames, FoldNumberedModulesThatOthersComeBetween) {
  const std::vector<std::string> towers{"a.0", "b.0", "a.1", "b.1", "a.2", "out"};
  EXPECT_EQ(module_names({"a.0", "b.0", "a.1", "b.1"}, towers), "a.0-1, b");
}

TEST(ModuleNames, SayWhichModuleIsHeldInPart) {
  EXPECT_EQ(module_names({"block"}, {"block", "block", "out"}), "block (part)");
  EXPECT_EQ(module_names({""}, {"", "", "out"}), "model (part)");
}

TEST(ModuleNames, CountWhatIsTooMuchToRead) {
  const std::vector<std::string> flat{"a", "b", "c", "d", "e"};
  EXPECT_EQ(ModuleNames(flat).of({"a", "b", "c", "d"}, /*most=*/2), "a, b and 2 more");
}

TEST(NumberRanges, FoldRuns) {
  EXPECT_EQ(number_ranges({3, 0, 1, 2, 6}), "0-3, 6");
  EXPECT_EQ(number_ranges({5}), "5");
}

TEST(Summarize, CountsParametersAndWhatLeavesTheStage) {
  GraphMaker maker;
  const auto x = maker.input("x");
  const auto a = maker.node("net.0.n0", {x, maker.parameter("w0")});
  const auto b = maker.node("net.1.n1", {a, maker.parameter("w1"), maker.parameter("w2")});
  maker.graph.outputs = {maker.node("net.2.n2", {a, b})};
  Plan plan;
  plan.micro_batches = 2;
  plan.stages = {stage({"net.0.n0"}, {0, 1}), stage({"net.1.n1"}, {2}), stage({"net.2.n2"}, {3})};
  const auto summary = summarize(plan, maker.graph, 8);
  ASSERT_EQ(summary.size(), 3u);
  EXPECT_EQ(summary[0].modules, "net.0");
  EXPECT_EQ(summary[0].ranks, "0-1");
  // Parameters of 4 float32; 4 rows of 4 float32 per micro-batch, to stages 1 and 2.
  EXPECT_EQ(summary[0].param_bytes, 16);
  EXPECT_EQ(summary[0].send_bytes, 2 * 64);
  EXPECT_EQ(summary[1].param_bytes, 32);
  EXPECT_EQ(summary[2].send_bytes, 64);  // to the user

  plan.stages[0].notes = R"({"limit":"memory","send_bytes":1})";
  EXPECT_EQ(with_summary(plan, maker.graph, 8).stages[0].notes,
            R"({"modules":"net.0","param_bytes":16,"send_bytes":128,"limit":"memory"})");
}

}  // namespace
}  // namespace rannc::plan
