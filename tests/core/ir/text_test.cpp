#include "rannc/ir/text.h"

#include <gtest/gtest.h>

#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

// One of everything that the text form can hold, in its canonical form.
constexpr std::string_view kEverything =
    R"(graph "a model"(%x) -> (%y, %x, %0.weight)
  input x: float32[B, 4] apart(0)
  parameter 0.weight: float32[8, 4] grad also "tied weight", head.weight
  buffer 0.count: int64[]
  constant c: float64[] #2
  node mul = aten::mul.Tensor(%x, %c) -> %h
    result h: float32[B, 4] apart(0) grad
  node view = aten::view(%h, [2*B, 2]) -> %v in 0 at "my model.py":12
    result v: float32[2*B, 2] apart(0, inner=2, unproved) grad shares %h
  node add_ = aten::add_.Tensor(%v, 1.0, 2) -> %w writes %v no_grad in 0.act
    result w: float32[2*B, 2] apart(0, inner=2) grad shares %h
  node script = my_function(%h, {%x, none}, {}, none, true, "sum\"\\\x0a", device(cuda)) -> none, %y scripted #0
    result y: float32[] mean(1, outer=2) grad
  node all = aten::lists(B, -B-1, 2*B+3, [], [1, B], [float], [1.0, -inf, 1e-05], [bool], [true, false])
)";

TEST(Text, PrintsWhatItParses) { EXPECT_EQ(print(parse(kEverything)), kEverything); }

TEST(Text, ParsesWhatItPrints) {
  const Graph graph = parse(kEverything);
  EXPECT_EQ(parse(print(graph)), graph);
}

TEST(Json, HoldsTheSameGraph) {
  const Graph graph = parse(kEverything);
  EXPECT_EQ(graph_from_json(to_json(graph)), graph);
  EXPECT_EQ(to_json(graph_from_json(to_json(graph))), to_json(graph));
}

}  // namespace
}  // namespace rannc::ir
