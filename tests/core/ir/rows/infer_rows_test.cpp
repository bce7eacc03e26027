#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

/// Rows of the last declared value, as the text form shows them, after infer_rows().
std::string rows_of(const std::string& lines, std::vector<RowMix>* mixes = nullptr) {
  const std::string last = [&] {
    const size_t begin = lines.rfind("result ") + 7;
    return lines.substr(begin, lines.find(':', begin) - begin);
  }();
  std::string header = "graph test(";
  for (size_t at = lines.find("input "); at != std::string::npos;
       at = lines.find("input ", at + 1)) {
    header += fmt::format("{}%{}", header.ends_with('(') ? "" : ", ",
                          lines.substr(at + 6, lines.find(':', at) - at - 6));
  }
  const Graph graph = infer_rows(parse(fmt::format("{}) -> (%{})\n{}", header, last, lines)));
  verify(graph);
  if (mixes != nullptr) *mixes = row_mixes(graph);
  const std::string text = print(graph);
  const size_t line = text.find(fmt::format("result {}: ", last));
  const std::string shown = text.substr(line, text.find('\n', line) - line);
  const size_t rest = shown.find("] ");
  return rest == std::string::npos ? "none" : shown.substr(rest + 2);
}

/// One call on the values x (B, 4, 6), y (B, 4, 6), s (4, B, 6), w (6, 6), b (6), l (B), u () mean,
/// v () sum.
std::string call(const std::string& op_and_arguments, const std::string& result_type) {
  return rows_of(fmt::format(R"(
  input x: float32[B, 4, 6] apart(0)
  input y: float32[B, 4, 6] apart(0)
  input s: float32[4, B, 6] apart(1)
  input l: int64[B] apart(0)
  input u: float32[] mean
  input v: float32[] sum
  parameter idx: int64[4]
  input f: float32[2*B, 6] apart(0, inner=2)
  input g: float32[2*B, 6] apart(0, outer=2)
  parameter w: float32[6, 6]
  parameter b: float32[6]
  node n = {} -> %r
    result r: {}
)",
                             op_and_arguments, result_type));
}

struct Case {
  std::string call;
  std::string type;
  std::string rows;
};
void expect(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(call(c.call, c.type), c.rows) << c.call << " " << c.type;
}

TEST(RowsOfPointwise, FollowTheOperandAlignedFromTheRight) {
  expect({{"aten::relu(%x)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::relu_(%x)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::add.Tensor(%x, %b, 1)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::mul.Tensor(%x, %y)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::add.Tensor(%w, %b, 1)", "float32[6, 6]", "none"},
          // Rows of l are aligned with the last dimension of s: (4, B, 6) + (B) would be B == 6.
          {"aten::add.Tensor(%x, %s, 1)", "float32[B, B, 6]", "mixed"},
          // (B, 2) and (2, B) have the same size, and other rows in each place.
          {"aten::add.Tensor(%f, %g, 1)", "float32[2*B, 6]", "mixed"},
          {"aten::mul.Scalar(%x, B)", "float32[B, 4, 6]", "mixed"},
          {"aten::sub.Tensor(%x, %u, 1)", "float32[B, 4, 6]", "mixed"},
          {"aten::where.self(%x, %y, %b)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::where.self(%b, %u, %b)", "float32[6]", "mean"},
          {"aten::where.ScalarOther(%b, %v, 0)", "float32[6]", "sum"},
          {"aten::where.ScalarOther(%b, %v, 1)", "float32[6]", "mixed"},
          {"aten::where.self(%u, %u, %b)", "float32[6]", "mixed"},
          {"aten::masked_fill_.Scalar(%x, %y, -inf)", "float32[B, 4, 6]", "apart(0)"}});
}

TEST(RowsOfBatchReductions, StayLinear) {
  expect({{"aten::add.Tensor(%u, %u, 1)", "float32[]", "mean"},
          {"aten::add.Tensor(%u, %v, 1)", "float32[]", "mixed"},
          {"aten::add.Scalar(%u, 1.0, 1)", "float32[]", "mean"},
          {"aten::add.Scalar(%v, 1.0, 1)", "float32[]", "mixed"},
          {"aten::add.Scalar(%v, 0, 1)", "float32[]", "sum"},
          {"aten::mul.Tensor(%u, 0.5)", "float32[]", "mean"},
          {"aten::mul.Tensor(%u, %u)", "float32[]", "mixed"},
          {"aten::mul.Tensor(%u, 4*B)", "float32[]", "sum"},
          {"aten::div.Tensor(%v, 4*B)", "float32[]", "mean"},
          {"aten::div.Tensor(%v, 4*B+1)", "float32[]", "mixed"},
          {"aten::div.Tensor(%u, B)", "float32[]", "mixed"},
          {"aten::div.Tensor(1.0, %u)", "float32[]", "mixed"},
          {"aten::exp(%u)", "float32[]", "mixed"},
          {"aten::neg(%v)", "float32[]", "sum"},
          {"aten::detach(%u)", "float32[]", "mean"},
          {"aten::to.dtype(%u, 7)", "float64[]", "mean"},
          {"aten::to.dtype(%u, 4)", "int64[]", "mixed"},
          {"aten::stack({%u, %u}, 0)", "float32[2]", "mean"},
          {"aten::stack({%v, %u}, 0)", "float32[2]", "mixed"},
          {"aten::mul.Tensor(%b, %u)", "float32[6]", "mean"}});
}

TEST(RowsOfViews, AreTrackedExactly) {
  expect({{"aten::view(%x, [4*B, 6])", "float32[4*B, 6]", "apart(0, inner=4)"},
          {"aten::view(%s, [4*B, 6])", "float32[4*B, 6]", "apart(0, outer=4)"},
          {"aten::reshape(%f, [B, 12])", "float32[B, 12]", "apart(0)"},
          {"aten::reshape(%f, [B, 2, 6])", "float32[B, 2, 6]", "apart(0)"},
          {"aten::reshape(%g, [2, B, 6])", "float32[2, B, 6]", "apart(1)"},
          {"aten::view(%x, [2*B, 2, 6])", "float32[2*B, 2, 6]", "apart(0, inner=2)"},
          {"aten::flatten.using_ints(%s, 0, 2)", "float32[24*B]", "apart(0, outer=4, inner=6)"},
          // (4, B, 6) read as (2, 2, B*6)... keeps (outer, rows, inner) in one dimension.
          {"aten::view(%s, [2, 12*B])", "float32[2, 12*B]", "apart(1, outer=2, inner=6)"},
          // (4, B) read as (B, 4): element 1 of row 0 is the old row 1.
          {"aten::view(%s, [B, 24])", "float32[B, 24]", "mixed"},
          {"aten::transpose.int(%x, 0, 1)", "float32[4, B, 6]", "apart(1)"},
          {"aten::transpose.int(%x, -1, -3)", "float32[6, 4, B]", "apart(2)"},
          {"aten::permute(%x, [2, 0, 1])", "float32[6, B, 4]", "apart(1)"},
          {"aten::movedim.int(%x, 0, 2)", "float32[4, 6, B]", "apart(2)"},
          {"aten::movedim.intlist(%x, [2], [0])", "float32[6, B, 4]", "apart(1)"},
          {"aten::t(%f)", "float32[6, 2*B]", "apart(1, inner=2)"},
          {"aten::unsqueeze(%x, 0)", "float32[1, B, 4, 6]", "apart(1)"},
          {"aten::expand(%x, [3, -1, -1, -1])", "float32[3, B, 4, 6]", "apart(1)"},
          {"aten::expand(%b, [B, 6])", "float32[B, 6]", "apart(0)"},
          {"aten::expand(%u, [B])", "float32[B]", "mixed"},
          {"aten::broadcast_tensors({%x, %b})", "float32[B, 4, 6]", "apart(0)"},
          {"aten::select.int(%x, 1, B)", "float32[B, 6]", "mixed"},
          {"aten::select.int(%x, 1, 0)", "float32[B, 6]", "apart(0)"},
          {"aten::select.int(%s, 0, -1)", "float32[B, 6]", "apart(0)"},
          {"aten::select.int(%x, 0, 0)", "float32[4, 6]", "mixed"},
          {"aten::slice.Tensor(%x, 1, 0, 2, 1)", "float32[B, 2, 6]", "apart(0)"},
          {"aten::slice.Tensor(%x, 0, 0, 9223372036854775807, 1)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::slice.Tensor(%x, 0, 1, 9223372036854775807, 1)", "float32[B-1, 4, 6]", "mixed"},
          {"aten::slice.Tensor(%g, 0, B, 2*B, 1)", "float32[B, 6]", "apart(0)"},
          {"aten::slice.Tensor(%f, 0, B, 2*B, 1)", "float32[B, 6]", "mixed"},
          {"aten::contiguous(%s, 0)", "float32[4, B, 6]", "apart(1)"}});
}

TEST(RowsOfViews, AreWhereTheShapeSaysIfThereAreNoElements) {
  EXPECT_EQ(rows_of(R"(
  input x: float32[B, 0, 6] apart(0)
  node n = aten::unsqueeze(%x, 1) -> %r
    result r: float32[B, 1, 0, 6]
)"),
            "apart(0)");
}

TEST(RowsOfReductions, DependOnWhetherTheRowsAreReduced) {
  expect({{"aten::sum(%x, none)", "float32[]", "sum"},
          {"aten::mean(%x, none)", "float32[]", "mean"},
          {"aten::mean.dim(%x, [0], false, none)", "float32[4, 6]", "mean"},
          {"aten::sum.dim_IntList(%x, [-1], false, none)", "float32[B, 4]", "apart(0)"},
          {"aten::sum.dim_IntList(%s, [0], false, none)", "float32[B, 6]", "apart(0)"},
          {"aten::sum.dim_IntList(%s, [0], true, none)", "float32[1, B, 6]", "apart(1)"},
          {"aten::mean.dim(%s, [0, 1], false, none)", "float32[6]", "mean"},
          {"aten::sum(%u, none)", "float32[]", "mean"},
          {"aten::max(%x)", "float32[]", "mixed"},
          {"aten::amax(%x, [1], false)", "float32[B, 6]", "apart(0)"},
          {"aten::amax(%x, [], false)", "float32[]", "mixed"},
          {"aten::argmax(%x, none, false)", "int64[]", "mixed"},
          {"aten::argmax(%x, -1, false)", "int64[B, 4]", "apart(0)"},
          {"aten::var.correction(%x, [0], 1, false)", "float32[4, 6]", "mixed"},
          {"aten::std.dim(%s, [0], true, false)", "float32[B, 6]", "apart(0)"},
          {"aten::norm.Scalar(%x, 2)", "float32[]", "mixed"},
          {"aten::norm.ScalarOpt_dim(%x, 2, [1], true)", "float32[B, 1, 6]", "apart(0)"},
          {"aten::linalg_vector_norm(%x, 2, [-1], true, none)", "float32[B, 4, 1]", "apart(0)"},
          {"aten::softmax.int(%x, -1, none)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::softmax.int(%x, 0, none)", "float32[B, 4, 6]", "mixed"},
          {"aten::softmax.int(%s, -2, none)", "float32[4, B, 6]", "mixed(1)"},
          {"aten::cumsum(%x, 0, none)", "float32[B, 4, 6]", "mixed"},
          {"aten::flip(%x, [1])", "float32[B, 4, 6]", "apart(0)"},
          {"aten::roll(%x, [1], [0])", "float32[B, 4, 6]", "mixed"},
          {"aten::roll(%x, [1])", "float32[B, 4, 6]", "mixed"},
          {"aten::unfold(%x, 1, 2, 1)", "float32[B, 3, 6, 2]", "apart(0)"},
          {"aten::fft_rfft(%x, none, -1, none)", "complex64[B, 4, 4]", "apart(0)"},
          {"aten::fft_fft2(%x, none, none, none)", "complex64[B, 4, 6]", "apart(0)"},
          {"aten::fft_fft2(%s, none, none, none)", "complex64[4, B, 6]", "mixed(1)"},
          {"aten::fft_fftn(%x, none, none, none)", "complex64[B, 4, 6]", "mixed"},
          {"aten::fft_fftn(%x, [4, 6], none, none)", "complex64[B, 4, 6]", "apart(0)"},
          {"aten::triu(%x, 1)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::triu(%f, 1)", "float32[2*B, 6]", "mixed"},
          {"aten::max.other(%x, %y)", "float32[B, 4, 6]", "apart(0)"}});
}

TEST(RowsOfProducts, MustNotBeSummedOver) {
  expect({{"aten::linear(%x, %w, %b)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::matmul(%x, %w)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::matmul(%w, %b)", "float32[6]", "none"},
          {"aten::matmul(%x, %b)", "float32[B, 4]", "apart(0)"},
          {"aten::bmm(%x, %y)", "float32[B, 4, 4]", "apart(0)"},
          {"aten::mm(%f, %w)", "float32[2*B, 6]", "apart(0, inner=2)"},
          {"aten::addmm(%b, %f, %w, 1, 1)", "float32[2*B, 6]", "apart(0, inner=2)"},
          {"aten::matmul(%f, %g)", "float32[2*B, 2*B]", "mixed"},
          {"aten::einsum(\"bse,ef->bsf\", {%x, %w}, none)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::einsum(\"bse,bte->bst\", {%x, %y}, none)", "float32[B, 4, 4]", "apart(0)"},
          {"aten::einsum(\"bse,sbe->be\", {%x, %s}, none)", "float32[B, 6]", "apart(0)"},
          {"aten::einsum(\"bse,tbe->st\", {%x, %s}, none)", "float32[4, 4]", "mixed"},
          {"aten::einsum(\"...e,ef->...f\", {%x, %w}, none)", "float32[B, 4, 6]", "apart(0)"},
          // Without an arrow the dimensions of the ellipsis come first.
          {"aten::einsum(\"q...e,ke\", {%s, %w}, none)", "float32[B, 6, 4]", "apart(0)"},
          {"aten::einsum(\"...se,...te->st\", {%x, %y}, none)", "float32[4, 4]", "mixed"},
          {"aten::bilinear(%x, %y, %w, %b)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::dot(%l, %l)", "int64[]", "mixed"},
          {"aten::linear(%u, %w, none)", "float32[6]", "mean"},
          {"aten::scaled_dot_product_attention(%x, %x, %y, none, 0.0, false, none)",
           "float32[B, 4, 6]", "apart(0)"},
          {"aten::scaled_dot_product_attention(%s, %s, %s, none, 0.0, false, none)",
           "float32[4, B, 6]", "mixed(1)"}});
}

TEST(RowsOfLayers, StayApart) {
  expect({{"aten::layer_norm(%x, [6], %b, %b, 1e-05, true)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::layer_norm(%s, [4, 6], none, none, 1e-05, true)", "float32[4, B, 6]", "mixed(1)"},
          {"aten::batch_norm(%x, none, none, none, none, true, 0.1, 1e-05, false)",
           "float32[B, 4, 6]", "apart(0)"},
          {"aten::group_norm(%x, 2, none, none, 1e-05, false)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::embedding(%w, %l, -1, false, false)", "float32[B, 6]", "apart(0)"},
          {"aten::embedding(%w, %l, -1, true, false)", "float32[B, 6]", "mixed"},
          {"aten::one_hot(%l, 10)", "int64[B, 10]", "apart(0)"},
          {"aten::dropout(%x, 0.1, true)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::max_pool1d(%x, [2], [2], [0], [1], false)", "float32[B, 4, 3]", "apart(0)"},
          {"aten::constant_pad_nd(%x, [1, 1], 0)", "float32[B, 4, 8]", "apart(0)"},
          {"aten::constant_pad_nd(%x, [0, 0, 0, 0, 1, 1], 0)", "float32[B+2, 4, 6]", "mixed"}});
}

TEST(RowsOfLosses, FollowTheReduction) {
  expect({{"aten::mse_loss(%x, %y, 1)", "float32[]", "mean"},
          {"aten::mse_loss(%x, %y, 2)", "float32[]", "sum"},
          {"aten::mse_loss(%x, %y, 0)", "float32[B, 4, 6]", "apart(0)"},
          {"aten::cross_entropy_loss(%f, %l, none, 1, -100, 0.0)", "float32[]", "mixed"},
          {"aten::binary_cross_entropy_with_logits(%x, %y, none, none, 1)", "float32[]", "mean"},
          {"aten::kl_div(%x, %y, 2, false)", "float32[]", "sum"}});
  const std::string inputs = R"(
  input z: float32[B, 10, 7] apart(0)
  input c: int64[B, 7] apart(0)
  parameter k: float32[10]
)";
  const auto loss = [&](const std::string& node) { return rows_of(inputs + "  node n = " + node); };
  EXPECT_EQ(
      loss("aten::cross_entropy_loss(%z, %c, none, 1, -100, 0.0) -> %r\n result r: float32[]"),
      "mean");
  EXPECT_EQ(loss("aten::cross_entropy_loss(%z, %c, none, 0, -100, 0.0) -> %r\n"
                 " result r: float32[B, 7]"),
            "apart(0)");
  EXPECT_EQ(loss("aten::nll_loss_nd(%z, %c, none, 2, -100) -> %r\n result r: float32[]"), "sum");
  // The mean is over class weights, whose sum differs from share to share.
  EXPECT_EQ(loss("aten::cross_entropy_loss(%z, %c, %k, 1, -100, 0.0) -> %r\n result r: float32[]"),
            "mixed");
  EXPECT_EQ(loss("aten::cross_entropy_loss(%z, %c, %k, 2, -100, 0.0) -> %r\n result r: float32[]"),
            "sum");
}

TEST(RowsOfCreation, AreAlikeUnlessTheyCount) {
  expect({{"aten::zeros([B, 6], 6)", "float32[B, 6]", "apart(0)"},
          {"aten::ones([2, B, 6], 6)", "float32[2, B, 6]", "apart(1)"},
          {"aten::zeros([6], 6)", "float32[6]", "none"},
          {"aten::zeros_like(%s, 6)", "float32[4, B, 6]", "apart(1)"},
          {"aten::zeros_like(%u, 6)", "float32[]", "none"},
          {"aten::full([], B, 6)", "float32[]", "sum"},
          {"aten::arange(4, 4)", "int64[4]", "none"},
          {"aten::arange(B, 4)", "int64[B]", "mixed"},
          {"aten::randperm(B, 4)", "int64[B]", "mixed"},
          {"aten::rand([B, 6], 6)", "float32[B, 6]", "apart(0)"}});
}

TEST(RowsOfArrangements, KeepTheirOrder) {
  expect({{"aten::cat({%x, %y}, 1)", "float32[B, 8, 6]", "apart(0)"},
          // Rows of x, then rows of y: o = 0 and 1 of (2, B).
          {"aten::cat({%x, %y}, 0)", "float32[2*B, 4, 6]", "apart(0, outer=2)"},
          {"aten::cat({%x, %w}, 0)", "float32[B+6, 4, 6]", "mixed"},
          {"aten::stack({%x, %y}, 0)", "float32[2, B, 4, 6]", "apart(1)"},
          {"aten::stack({%x, %y}, -1)", "float32[B, 4, 6, 2]", "apart(0)"},
          {"aten::repeat(%x, [2, 1, 1])", "float32[2*B, 4, 6]", "apart(0, outer=2)"},
          {"aten::repeat(%b, [B, 1])", "float32[B, 6]", "apart(0)"},
          {"aten::repeat_interleave.self_int(%x, 3, 0, none)", "float32[3*B, 4, 6]",
           "apart(0, inner=3)"}});
}

TEST(RowsOfIndexing, MayPickWithinEachRow) {
  expect({{"aten::index_select(%x, 1, %idx)", "float32[B, 4, 6]", "apart(0)"}});
}

TEST(RowsOfIndexing, MayPickFromATableWithoutRows) {
  // A noise schedule: schedule.gather(0, step_of_row). Diffusion models ran as one micro-batch, as
  // if their rows were taken from one another.
  expect({{"aten::gather(%b, 0, %l, false)", "float32[B]", "apart(0)"},
          {"aten::gather(%b, -1, %l, false)", "float32[B]", "apart(0)"},
          {"aten::take_along_dim(%b, %l, 0)", "float32[B]", "apart(0)"}});
  // Along another dimension each row has the elements of the table's row of its own number.
  EXPECT_EQ(rows_of(R"(
  input l: int64[B, 6] apart(0)
  parameter w: float32[6, 6]
  node n = aten::gather(%w, 1, %l, false) -> %r
    result r: float32[B, 6]
)"),
            "mixed");
}

TEST(RowsOfBroadcastTensors, FollowEachOperand) {
  // b and c are alike in all rows, so they take the places that the rows of g have: o = 0 and 1.
  const std::string nodes = R"(
  input g: float32[2*B, 6] apart(0, outer=2)
  input u: float32[] mean
  parameter b: float32[6]
  node all = aten::broadcast_tensors({%b, %g, %b, %u}) -> %p, %q, %s, %t
    result p: float32[2*B, 6]
    result q: float32[2*B, 6]
    result s: float32[2*B, 6]
    result t: float32[2*B, 6]
)";
  EXPECT_EQ(rows_of(nodes + "  node n = aten::add.Tensor(%p, %q, 1) -> %r\n"
                            "    result r: float32[2*B, 6]\n"),
            "mixed");  // the mean meets rows in the same operator
  const std::string without_mean = R"(
  input g: float32[2*B, 6] apart(0, outer=2)
  parameter b: float32[6]
  node all = aten::broadcast_tensors({%b, %g}) -> %p, %q
    result p: float32[2*B, 6]
    result q: float32[2*B, 6]
  node n = aten::add.Tensor(%p, %q, 1) -> %r
    result r: float32[2*B, 6]
)";
  EXPECT_EQ(rows_of(without_mean), "apart(0, outer=2)");
}

TEST(RowsOfEmbeddingBag, AreTheBags) {
  // F.embedding_bag on indices (B, 5): flattened, and bag b begins at 5 * b.
  const auto bags = [](const std::string& arange) {
    std::vector<RowMix> mixes;
    const std::string rows = rows_of(
        "\n  input i: int64[5*B] apart(0, inner=5)\n"
        "  parameter w: float32[9, 6]\n"
        "  node begins = " +
            arange +
            " -> %o\n"
            "    result o: int64[B]\n"
            "  node alias = aten::detach(%o) -> %d\n"
            "    result d: int64[B] shares %o\n"
            "  node n = aten::embedding_bag(%w, %i, %d, false, 1, false, none, false, none) -> %r\n"
            "    result r: float32[B, 6]\n",
        &mixes);
    return fmt::format("{}, {} mixes", rows, mixes.size());
  };
  EXPECT_EQ(bags("aten::arange.start_step(0, 5*B, 5, 4)"), "apart(0), 0 mixes");
  // Several bags in each row.
  const std::string two = rows_of(R"(
  input i: int64[10*B] apart(0, inner=10)
  parameter w: float32[9, 6]
  node begins = aten::arange.start_step(0, 10*B, 5, 4) -> %o
    result o: int64[2*B]
  node n = aten::embedding_bag(%w, %i, %o, false, 1, false, none, false, none) -> %r
    result r: float32[2*B, 6]
)");
  EXPECT_EQ(two, "apart(0, inner=2)");
  // Bags of four elements, each of which but the first begins inside another row.
  EXPECT_EQ(bags("aten::arange.start_step(0, 4*B, 4, 4)"), "mixed, 1 mixes");
}

TEST(RowsOfUnknownOperators, AreGuessedFromTheShapes) {
  expect({{"mine::op(%x)", "float32[B, 3]", "apart(0, unproved)"},
          {"mine::op(%f)", "float32[2*B, 3]", "apart(0, inner=2, unproved)"},
          {"mine::op(%g)", "float32[2*B]", "apart(0, outer=2, unproved)"},
          {"mine::op(%x)", "float32[3*B]", "apart(0, inner=3, unproved)"},
          {"mine::op(%x)", "float32[3]", "mixed"},
          {"mine::op(%x)", "float32[B, B]", "mixed"},
          {"mine::op(%u)", "float32[]", "mixed"},
          {"mine::op(%w)", "float32[3]", "none"},
          {"mine::op(%w, B)", "float32[B]", "mixed"}});
}

/// Tokens that are sorted by their keys (two for each), and what follows.
std::string sorted(const std::string& lines, std::vector<RowMix>* mixes = nullptr) {
  return rows_of(R"(
  input x: float32[3*B, 6] apart(0, inner=3)
  input chosen: int64[6*B] apart(0, inner=6)
  input scores: float32[6*B, 1] apart(0, inner=6)
  parameter w: float32[4, 6, 6]
  node sort = aten::sort(%chosen, -1, false) -> %keys, %sources
    result keys: int64[6*B]
    result sources: int64[6*B]
  node token = aten::floor_divide(%sources, 2) -> %token
    result token: int64[6*B]
  node take = aten::index.Tensor(%x, {%token}) -> %taken
    result taken: float32[6*B, 6]
  node histc = aten::histc(%keys, 4, 0, 3) -> %counts
    result counts: int64[4]
  node cumsum = aten::cumsum(%counts, 0, none) -> %ends
    result ends: int64[4]
  node empty = aten::empty_like(%sources, none, none, none, false, none) -> %empty
    result empty: int64[6*B]
  node arange = aten::arange(6*B, none, none, none, none) -> %arange
    result arange: int64[6*B]
  node invert = aten::index_put_(%empty, {%sources}, %arange, false) -> %targets writes %empty
    result targets: int64[6*B] shares %empty
)" + lines,
                 mixes);
}

TEST(RowsOfCounts, AreSums) {
  expect({{"aten::histc(%l, 4, 0, 3)", "float32[4]", "sum"},
          {"aten::histc(%x, 4, 0, 0)", "float32[4]", "mixed"},
          {"aten::histc(%x, 4, 0.0, 0.5)", "float32[4]", "sum"},
          {"aten::histc(%u, 4, 0, 3)", "float32[4]", "mixed"}});
  const auto added = [](std::string_view before, std::string_view call) {
    return rows_of(fmt::format(R"(
  input x: float32[B, 6] apart(0)
  input l: int64[B] apart(0)
  input k: int64[B, 6] apart(0)
  node zeros = aten::zeros([4, 6], none, none, none, none) -> %z
    result z: float32[4, 6]
{}
  node n = {} -> %r
    result r: float32[4, 6]
)",
                               before, call));
  };
  EXPECT_EQ(added("", "aten::index_add(%z, 0, %l, %x, 1)"), "sum");
  EXPECT_EQ(added("", "aten::scatter_add(%z, 0, %k, %x)"), "sum");
  const std::string_view detach = R"(
  node detach = aten::detach(%z) -> %d
    result d: float32[4, 6] shares %z)";
  EXPECT_EQ(added(detach, "aten::index_add(%d, 0, %l, %x, 1)"), "sum");
  EXPECT_EQ(added("", "aten::scatter(%z, 0, %k, %x)"), "mixed");
  const std::string_view ones = R"(
  node ones = aten::fill_.Scalar(%z, 1) -> %y writes %z
    result y: float32[4, 6] shares %z)";
  EXPECT_EQ(added(ones, "aten::index_add(%z, 0, %l, %x, 1)"), "mixed");
}

TEST(SortedRows, AreApartOnceTheyArePutBack) {
  std::vector<RowMix> mixes;
  EXPECT_EQ(sorted(R"(
  node product = aten::_grouped_mm(%taken, %w, %ends, none, none) -> %product
    result product: float32[6*B, 6]
  node gelu = aten::gelu(%product, "none") -> %a
    result a: float32[6*B, 6]
  node back = aten::index.Tensor(%a, {%targets}) -> %r
    result r: float32[6*B, 6]
)",
                   &mixes),
            "apart(0, inner=6)");
  EXPECT_TRUE(mixes.empty());
  const std::string zeros = R"(
  node zeros = aten::zeros([3*B, 6], none, none, none, none) -> %z
    result z: float32[3*B, 6]
)";
  EXPECT_EQ(sorted(zeros + R"(
  node back = aten::index_add(%z, 0, %token, %taken, 1) -> %r
    result r: float32[3*B, 6]
)"),
            "apart(0, inner=3)");
  EXPECT_EQ(sorted(zeros + R"(
  node column = aten::reshape(%token, [-1, 1]) -> %c
    result c: int64[6*B, 1] shares %token
  node wide = aten::expand(%c, [-1, 6], false) -> %e
    result e: int64[6*B, 6] shares %token
  node back = aten::scatter_add(%z, 0, %e, %taken) -> %r
    result r: float32[3*B, 6]
)"),
            "apart(0, inner=3)");
  EXPECT_EQ(sorted(R"(
  node argsort = aten::argsort(%sources, -1, false) -> %i
    result i: int64[6*B]
  node back = aten::index_select(%taken, 0, %i) -> %r
    result r: float32[6*B, 6]
)"),
            "apart(0, inner=6)");
  EXPECT_EQ(sorted(R"(
  node add = aten::sum.dim_IntList(%taken, [0], false, none) -> %r
    result r: float32[6]
)"),
            "sum");
}

TEST(SortedRows, AreMultipliedInGroupsByWhatIsLikeTorchsOwnProduct) {
  constexpr std::string_view kProduct = R"(
  node product = mine::product(%taken, %w, %ends, none, none) -> %product{}
    result product: float32[6*B, 6]
  node back = aten::index.Tensor(%product, {{%targets}}) -> %r
    result r: float32[6*B, 6]
)";
  EXPECT_EQ(sorted(fmt::format(kProduct, " like aten::_grouped_mm")), "apart(0, inner=6)");
  EXPECT_EQ(sorted(fmt::format(kProduct, "")), "mixed");
}

TEST(SortedRows, AreNotProvedToBeApartWhereTheGroupsAreNotThoseOfTheKeys) {
  for (const std::string_view count :
       {"aten::histc(%keys, 4, 0, 2)", "aten::histc(%chosen, 4, 0, 3)"}) {
    EXPECT_EQ(sorted(fmt::format(R"(
  node other = {} -> %others
    result others: int64[4]
  node cumsum2 = aten::cumsum(%others, 0, none) -> %ends2
    result ends2: int64[4]
  node product = aten::_grouped_mm(%taken, %w, %ends2, none, none) -> %product
    result product: float32[6*B, 6]
  node back = aten::index.Tensor(%product, {{%targets}}) -> %r
    result r: float32[6*B, 6]
)",
                                 count)),
              "apart(0, inner=6, unproved)");
  }
}

TEST(SortedRows, MixWithWhatIsNotInTheirOrder) {
  const std::string back = R"(
  node back = aten::index.Tensor(%a, {%targets}) -> %r
    result r: float32[6*B, 6]
)";
  std::vector<RowMix> mixes;
  EXPECT_EQ(sorted(R"(
  node times = aten::mul.Tensor(%taken, %scores) -> %a
    result a: float32[6*B, 6]
)" + back,
                   &mixes),
            "mixed");
  ASSERT_FALSE(mixes.empty());
  EXPECT_EQ(mixes[0].reason, "aten::sort over dimension 0, which holds the rows");
  // Slices that see each other, numbers for each slice that another share draws, another order,
  // tokens of another width, and targets that have been written to since.
  for (const std::string_view lines : {
           R"(
  node see = aten::cumsum(%taken, 0, none) -> %a
    result a: float32[6*B, 6]
)",
           R"(
  node drop = aten::dropout(%taken, 0.1, true) -> %a
    result a: float32[6*B, 6]
)",
           R"(
  node resort = aten::argsort(%chosen, -1, false) -> %other
    result other: int64[6*B]
  node take2 = aten::index.Tensor(%scores, {%other}) -> %s
    result s: float32[6*B, 1]
  node times = aten::mul.Tensor(%taken, %s) -> %a
    result a: float32[6*B, 6]
)",
           R"(
  node half = aten::floor_divide(%sources, 3) -> %h
    result h: int64[6*B]
  node take2 = aten::index.Tensor(%x, {%h}) -> %a
    result a: float32[6*B, 6]
)",
           R"(
  node same = aten::relu(%taken) -> %a
    result a: float32[6*B, 6]
  node spoil = aten::add_.Scalar(%targets, 1, 1) -> %t writes %targets
    result t: int64[6*B] shares %empty
)",
       }) {
    EXPECT_EQ(sorted(std::string(lines) + back), "mixed") << lines;
  }
  EXPECT_EQ(sorted(R"(
  node relu = aten::relu(%taken) -> %r
    result r: float32[6*B, 6]
)"),
            "mixed");
}

}  // namespace
}  // namespace rannc::ir
