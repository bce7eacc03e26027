#include <gtest/gtest.h>

#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

Graph inferred(std::string_view text) { return infer_rows(parse(text)); }

TEST(SizesAreLinear, UnlessATensorGrowsWithTheSquareOfTheRows) {
  EXPECT_TRUE(sizes_are_linear(inferred(R"(graph flat(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  node flat = aten::reshape(%x, [4*B]) -> %y
    result y: float32[4*B]
)")));
  EXPECT_FALSE(sizes_are_linear(inferred(R"(graph pairs(%x) -> (%y)
  input x: float32[B, 1] apart(0)
  node turned = aten::expand(%x, [B, B], false) -> %y
    result y: float32[B, B]
)")));
}

TEST(SizesAreLinear, UnlessRowsInteractInsideAnOperator) {
  EXPECT_FALSE(sizes_are_linear(inferred(R"(graph words(%q) -> (%y)
  input q: float32[2, B, 4] apart(1)
  node attention = aten::scaled_dot_product_attention(%q, %q, %q) -> %y
    result y: float32[2, B, 4]
)")));
}

}  // namespace
}  // namespace rannc::ir
