#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

std::string found(std::string_view text, const std::vector<bool>& known) {
  const Graph graph = infer_rows(parse(text));
  const std::vector<bool> shared = per_call(graph, known);
  std::string names;
  for (size_t index = 0; index < shared.size(); ++index) {
    if (shared[index]) names += (names.empty() ? "" : " ") + graph.nodes[index].name;
  }
  return names;
}

TEST(PerCall, CastsOfParametersAndWhatNoGradientReaches) {
  EXPECT_EQ(found(R"(graph g(%x, %scale, %other) -> (%y)
  input x: float32[B, 4] apart(0)
  input scale: float32[4]
  input other: float32[4]
  parameter w: float32[4, 4] grad
  parameter table: float32[8, 4] grad
  buffer mask: float32[4]
  node cast = aten::to.dtype(%w, 15, false, false, none) -> %w16
    result w16: bfloat16[4, 4] grad
  node again = aten::to.dtype(%w16, 6, false, false, none) -> %w32
    result w32: float32[4, 4] grad
  node rows = aten::to.dtype(%x, 15, false, false, none) -> %x16
    result x16: bfloat16[B, 4] apart(0)
  node positions = aten::arange(8, none, none, device(cpu), false) -> %p
    result p: int64[8]
  node looked_up = aten::embedding(%table, %p, -1, false, false) -> %e
    result e: float32[8, 4] grad
  node normalised = aten::mul.Tensor(%w32, %mask) -> %n
    result n: float32[4, 4] grad
  node exp = aten::exp(%mask) -> %m
    result m: float32[4]
  node of_argument = aten::exp(%scale) -> %s
    result s: float32[4]
  node of_micro_batch = aten::exp(%other) -> %o
    result o: float32[4]
  node many = aten::arange(B, none, none, device(cpu), false) -> %many
    result many: int64[B]
  node last = aten::select.int(%many, 0, -1) -> %last
    result last: int64[]
  node y = aten::matmul(%x, %w32) -> %y
    result y: float32[B, 4] apart(0) grad
)",
                  {false, true, false}),
            "cast again positions exp of_argument");
}

TEST(PerCall, NothingThatDrawsWritesIsWrittenOrReturned) {
  EXPECT_EQ(found(R"(graph g(%x) -> (%y, %given)
  input x: float32[B, 4] apart(0)
  parameter w: float32[4] grad
  parameter moved: float32[4]
  buffer count: int64[]
  buffer mask: float32[4]
  node cast_moved = aten::to.dtype(%moved, 15, false, false, none) -> %moved16
    result moved16: bfloat16[4] grad
  node move = aten::mul_.Scalar(%moved, 0.5) -> %halved writes %moved
    result halved: float32[4] shares %moved
  node count = aten::add_.Scalar(%count, 1, 1) -> %counted writes %count
    result counted: int64[] shares %count
  node draw = aten::bernoulli(%mask, none) -> %drawn
    result drawn: float32[4]
  node of_drawn = aten::exp(%drawn) -> %d
    result d: float32[4]
  node made = aten::exp(%mask) -> %m
    result m: float32[4]
  node filled = aten::fill_.Scalar(%m, 0) -> %f writes %m
    result f: float32[4] shares %m
  node given = aten::exp(%mask) -> %given
    result given: float32[4]
  node cast = aten::to.dtype(%w, 15, false, false, none) -> %w16
    result w16: bfloat16[4] grad
  node y = aten::mul.Tensor(%x, %w16) -> %y
    result y: float32[B, 4] apart(0) grad
)",
                  {false}),
            "cast");
}

}  // namespace
}  // namespace rannc::ir
