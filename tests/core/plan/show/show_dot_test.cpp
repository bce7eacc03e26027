#include <gtest/gtest.h>

#include "plan/graphs.h"
#include "rannc/plan/show.h"

namespace rannc::plan {
namespace {

TEST(ShowDot, DrawsABoxAroundEachStage) {
  EXPECT_EQ(show_dot(chain_plan({1, 2}, 1), chain(2, /*loss=*/true)),
            "digraph \"\" {\n"
            "  node [shape=box];\n"
            "  subgraph cluster_0 {\n"
            "    label=\"stage 0, ranks 0\";\n"
            "    \"n0\" [label=\"n0\n"
            "aten::test\"];\n"
            "  }\n"
            "  subgraph cluster_1 {\n"
            "    label=\"stage 1, ranks 1 2\";\n"
            "    \"n1\" [label=\"n1\n"
            "aten::test\"];\n"
            "  }\n"
            "  \"value x\" [shape=ellipse, label=\"x\n"
            "float32 (B, 4)\"];\n"
            "  \"value x\" -> \"n0\";\n"
            "  \"value w0\" [shape=ellipse, label=\"w0\n"
            "float32 (4)\"];\n"
            "  \"value w0\" -> \"n0\";\n"
            "  \"n0\" -> \"n1\" [label=\"float32 (B, 4)\"];\n"
            "  \"value w1\" [shape=ellipse, label=\"w1\n"
            "float32 (4)\"];\n"
            "  \"value w1\" -> \"n1\";\n"
            "  output [shape=ellipse];\n"
            "  \"n1\" -> output;\n"
            "}\n");
}

TEST(ShowDot, OfOneStageShowsWhatEntersAndLeavesIt) {
  EXPECT_EQ(show_dot(chain_plan({1, 2}, 1), chain(2, /*loss=*/true), 0),
            "digraph \"\" {\n"
            "  node [shape=box];\n"
            "  subgraph cluster_0 {\n"
            "    label=\"stage 0, ranks 0\";\n"
            "    \"n0\" [label=\"n0\n"
            "aten::test\"];\n"
            "  }\n"
            "  \"value x\" [shape=ellipse, label=\"x\n"
            "float32 (B, 4)\"];\n"
            "  \"value x\" -> \"n0\";\n"
            "  \"value w0\" [shape=ellipse, label=\"w0\n"
            "float32 (4)\"];\n"
            "  \"value w0\" -> \"n0\";\n"
            "  \"value n0_out to stage 1\" [shape=ellipse, label=\"to stage 1\n"
            "float32 (B, 4)\"];\n"
            "  \"n0\" -> \"value n0_out to stage 1\";\n"
            "}\n");
}

}  // namespace
}  // namespace rannc::plan
