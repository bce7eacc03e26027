#include <gtest/gtest.h>

#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

TEST(ForRowsAlone, TakesAllRowsAndDealsOutWhatHasAsMany) {
  // A trace at 4 rows: the sum of pairs, of which there are two, and the rows themselves. The
  // weight has four rows, too, but none of the batch's.
  const Graph graph = for_rows_alone(parse(R"(graph pairs(%x) -> (%s, %x, %w)
  input x: float32[4, 3] apart(0)
  parameter w: float32[4, 3]
  node v = aten::view(%x, [2, 2, 3]) -> %v
    result v: float32[2, 2, 3] shares %x
  node s = aten::sum.dim_IntList(%v, [1], false, none) -> %s
    result s: float32[2, 3]
)"),
                                     4);
  verify(graph);
  EXPECT_EQ(graph[graph.inputs[0]].dims[0], (AffineInt{0, 1}));
  EXPECT_EQ(graph.nodes.front().name, "x.all_rows");
  EXPECT_FALSE(why_rows_interact(graph).empty());
  EXPECT_EQ(graph[graph.outputs[0]].dims[0], (AffineInt{2, 0}));
  EXPECT_EQ(graph[graph.outputs[1]].dims[0], (AffineInt{0, 1}));
  EXPECT_TRUE(has_row_dimension(graph[graph.outputs[1]]));
  EXPECT_EQ(graph[graph.outputs[2]].name, "w");
}

TEST(AtRows, SizesAndWholeFloatsAreIntegers) {
  const Graph any = parse(R"(graph halves(%x) -> (%h)
  input x: float32[B, 3] apart(0)
  node h = aten::div.Tensor(%x, B) -> %h
    result h: float32[B, 3]
)");
  const Graph four = parse(R"(graph halves(%x) -> (%h)
  input x: float32[4, 3] apart(0)
  node h = aten::div.Tensor(%x, 4.0) -> %h
    result h: float32[4, 3]
)");
  EXPECT_EQ(at_rows(any, 4), at_rows(four, 4));
  EXPECT_NE(at_rows(any, 5), at_rows(four, 4));
}

}  // namespace
}  // namespace rannc::ir
