#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rannc/ir/cut.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

Graph inferred(std::string_view text) {
  Graph graph = infer_rows(parse(text));
  verify(graph);
  return graph;
}

std::vector<std::string> names(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::vector<std::string> list;
  for (NodeId node : nodes) list.push_back(graph[node].name);
  return list;
}
std::vector<NodeId> nodes(const Graph& graph, const std::vector<std::string>& node_names) {
  std::vector<NodeId> list;
  for (const std::string& name : node_names) list.push_back(*graph.find_node(name));
  return list;
}
using Names = std::vector<std::string>;

constexpr std::string_view kInPlace = R"(graph resnet(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  parameter w: float32[4, 4]
  node conv1 = aten::linear(%x, %w, none) -> %a
    result a: float32[B, 4]
  node relu1 = aten::relu_(%a) -> %b writes %a
    result b: float32[B, 4] shares %a
  node conv2 = aten::linear(%b, %w, none) -> %c
    result c: float32[B, 4]
  node add = aten::add_.Tensor(%c, %b, 1) -> %d writes %c
    result d: float32[B, 4] shares %c
  node conv3 = aten::linear(%d, %w, none) -> %y
    result y: float32[B, 4]
)";

TEST(InseparableNodes, EndAtTheLastWrite) {
  const Graph graph = inferred(kInPlace);
  const auto sets = inseparable_nodes(graph);
  // conv2 reads b only after relu_ has written it, so it may get a copy; and conv3 likewise.
  ASSERT_EQ(sets.size(), 2U);
  EXPECT_EQ(names(graph, sets[0]), (Names{"conv1", "relu1"}));
  EXPECT_EQ(names(graph, sets[1]), (Names{"conv2", "add"}));
}

TEST(InseparableNodes, HoldTogetherReadersBeforeAWriteThroughAView) {
  const Graph graph = inferred(R"(graph views(%x) -> (%z, %u)
  input x: float32[B, 4] apart(0)
  node exp = aten::exp(%x) -> %h
    result h: float32[B, 4]
  node early = aten::exp(%h) -> %u
    result u: float32[B, 4]
  node select = aten::select.int(%h, 1, 0) -> %v
    result v: float32[B] shares %h
  node fill = aten::fill_.Scalar(%v, 0) -> %v2 writes %v
    result v2: float32[B] shares %h
  node late = aten::exp(%h) -> %z
    result z: float32[B, 4]
)");
  const auto sets = inseparable_nodes(graph);
  ASSERT_EQ(sets.size(), 1U);
  EXPECT_EQ(names(graph, sets[0]), (Names{"exp", "early", "select", "fill"}));
}

TEST(InseparableNodes, HoldTogetherWhatIsSortedUntilItIsPutBack) {
  const Graph graph = inferred(R"(graph sorted(%x, %k) -> (%z)
  input x: float32[B, 4] apart(0)
  input k: int64[B] apart(0)
  node before = aten::exp(%x) -> %a
    result a: float32[B, 4]
  node order = aten::argsort(%k, 0, false) -> %i
    result i: int64[B]
  node take = aten::index.Tensor(%a, {%i}) -> %b
    result b: float32[B, 4]
  node exp = aten::exp(%b) -> %c
    result c: float32[B, 4]
  node invert = aten::argsort(%i, 0, false) -> %j
    result j: int64[B]
  node back = aten::index.Tensor(%c, {%j}) -> %d
    result d: float32[B, 4]
  node after = aten::exp(%d) -> %z
    result z: float32[B, 4]
)");
  const auto sets = inseparable_nodes(graph);
  ASSERT_EQ(sets.size(), 1U);
  EXPECT_EQ(names(graph, sets[0]), (Names{"order", "take", "exp", "invert", "back"}));
}

constexpr std::string_view kBatchNorm = R"(graph bn(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  parameter w: float32[4, 4]
  buffer bn.mean: float32[4]
  buffer bn.var: float32[4]
  buffer bn.count: int64[]
  node mask = aten::triu(%w, 1) -> %t in first
    result t: float32[4, 4]
  node first = aten::linear(%x, %t, none) -> %a in first
    result a: float32[B, 4]
  node count = aten::add_.Tensor(%bn.count, 1, 1) -> %n writes %bn.count in bn
    result n: int64[] shares %bn.count
  node norm = aten::batch_norm(%a, none, none, %bn.mean, %bn.var, true, 0.2, 1e-05, false) -> %b writes %bn.mean, %bn.var in bn
    result b: float32[B, 4]
  node last = aten::linear(%b, %t, none) -> %y
    result y: float32[B, 4]
)";

TEST(DependsOnRows, IsFalseForWhatParametersAloneDecide) {
  EXPECT_EQ(depends_on_rows(inferred(kBatchNorm)),
            (std::vector<bool>{false, true, false, true, true}));
}

/// By node name: those that depend on the rows.
Names dependent(const Graph& graph) {
  const std::vector<bool> marks = depends_on_rows(graph);
  Names list;
  for (size_t index = 0; index < marks.size(); ++index) {
    if (marks[index]) list.push_back(graph.nodes[index].name);
  }
  return list;
}

constexpr std::string_view kRowNumbers = R"(graph picks(%x) -> (%z)
  input x: float32[B, 7, 4] apart(0)
  node rows = aten::arange(B, 4) -> %r
    result r: int64[B]
  node column = aten::unsqueeze(%r, 1) -> %c
    result c: int64[B, 1] shares %r
  node zeros = aten::zeros([B, 4], 6) -> %h
    result h: float32[B, 4]
  node noise = aten::rand([B, 4], 6) -> %n
    result n: float32[B, 4]
  node first = aten::index.Tensor(%x, {%r}) -> %y
    result y: float32[B, 7, 4]
  node second = aten::index.Tensor(%y, {%c}) -> %z
    result z: float32[B, 1, 7, 4]
)";

TEST(DependsOnRows, IsFalseForRowsMadeFromNothing) {
  // Random numbers must be the same in every stage that reads them.
  EXPECT_EQ(dependent(inferred(kRowNumbers)), (Names{"noise", "first", "second"}));
}

TEST(DependsOnRows, IsTrueForAStorageThatTakesRowsLater) {
  EXPECT_EQ(dependent(inferred(R"(graph filled(%x) -> (%h)
  input x: float32[B, 4] apart(0)
  parameter w: float32[4]
  node fixed = aten::zeros([4], 6) -> %f
    result f: float32[4]
  node other = aten::exp(%w) -> %e
    result e: float32[4]
  node zeros = aten::zeros([B, 4], 6) -> %h
    result h: float32[B, 4]
  node mean = aten::mean.dim(%x, [0], false, none) -> %m
    result m: float32[4]
  node copy1 = aten::copy_(%f, %m, false) -> %f2 writes %f
    result f2: float32[4] shares %f
  node copy2 = aten::copy_(%h, %x, false) -> %h2 writes %h
    result h2: float32[B, 4] shares %h
)")),
            (Names{"fixed", "zeros", "mean", "copy1", "copy2"}));
}

TEST(DependsOnRows, IsTrueForNumbersOfRows) {
  // Every share would count its own rows.
  const Graph graph = inferred(R"(graph counts(%x) -> (%x)
  input x: float32[B, 4] apart(0)
  buffer seen: int64[]
  parameter w: float32[4]
  node count = aten::add_.Tensor(%seen, B, 1) -> %n writes %seen
    result n: int64[] shares %seen
  node pick = aten::select.int(%w, 0, B-1) -> %p
    result p: float32[]
)");
  EXPECT_EQ(dependent(graph), (Names{"count", "pick"}));
  const auto mixes = row_mixes(graph);
  ASSERT_EQ(mixes.size(), 2U);
  EXPECT_EQ(mixes[0].reason, "aten::add_.Tensor adds something else to a sum over the batch");
  EXPECT_EQ(mixes[1].reason,
            "aten::add_.Tensor writes what it computes from the batch to the buffer 'seen'");
  EXPECT_EQ(graph[*graph.find_value("p")].rows.kind, RowKind::mixed);
}

TEST(Extract, NumbersTheRowsOfEachStageAnew) {
  const Graph graph = inferred(kRowNumbers);
  const Graph stage = extract(graph, nodes(graph, {"second"}), {*graph.find_value("z")});
  verify(stage);
  EXPECT_EQ(print(stage), R"(graph picks(%y) -> (%z)
  node rows = aten::arange(B, 4) -> %r
    result r: int64[B] mixed
  node column = aten::unsqueeze(%r, 1) -> %c
    result c: int64[B, 1] mixed shares %r
  input y: float32[B, 7, 4] apart(0)
  node second = aten::index.Tensor(%y, {%c}) -> %z
    result z: float32[B, 1, 7, 4] apart(0)
)");
}

TEST(RunningStatistics, NameBufferNodeAndMomentum) {
  const Graph graph = inferred(kBatchNorm);
  const auto found = running_statistics(graph);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(graph[found[0].buffer].name, "bn.mean");
  EXPECT_EQ(graph[found[1].buffer].name, "bn.var");
  EXPECT_EQ(graph[found[0].node].name, "norm");
  EXPECT_EQ(found[0].momentum, 0.2);
  EXPECT_FALSE(found[0].of_each_row);
}

TEST(RowFreeBuffers, AreWrittenWithoutRowsAndCountNoStatistics) {
  const Graph graph = inferred(R"(graph written(%x) -> (%y)
  input x: float32[B, 3] apart(0)
  buffer norm.mean: float32[3]
  buffer norm.var: float32[3]
  buffer norm.count: int64[]
  buffer calls: int64[]
  buffer seen: float32[3]
  node counts = aten::add_.Tensor(%norm.count, 1, 1) -> %c writes %norm.count in norm
    result c: int64[] shares %norm.count
  node counts_calls = aten::add_.Tensor(%calls, 1, 1) -> %d writes %calls in norm_and_more
    result d: int64[] shares %calls
  node norm = aten::batch_norm(%x, none, none, %norm.mean, %norm.var, true, 0.1, 1e-05, false) -> %y writes %norm.mean, %norm.var in norm
    result y: float32[B, 3] apart(0)
  node sum = aten::sum.dim_IntList(%y, [0], false, none) -> %s
    result s: float32[3]
  node sees = aten::add_.Tensor(%seen, %s, 1) -> %t writes %seen
    result t: float32[3] shares %seen
)");
  const std::vector<ValueId> found = row_free_state(graph);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(graph[found[0]].name, "calls");
}

TEST(BatchNormalisations, AreThoseInTraining) {
  Graph graph = inferred(kBatchNorm);
  const std::vector<NodeId> found = batch_normalisations(graph);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(graph[found[0]].name, "norm");
  graph[found[0]].inputs[5] = false;
  EXPECT_TRUE(batch_normalisations(graph).empty());
}

TEST(WholeBatchStatistics, MarkBatchNormInTrainingAlone) {
  const Graph graph = inferred(kBatchNorm);
  Graph marked = whole_batch_statistics(graph);
  for (Node& node : marked.nodes) {
    EXPECT_EQ(node.whole_batch, node.name == "norm") << node.name;
    node.whole_batch = false;
  }
  EXPECT_EQ(marked, graph);

  marked.nodes[3].inputs[5] = false;
  EXPECT_EQ(whole_batch_statistics(marked), marked);
}

TEST(WholeBatchStatistics, RefuseAnOperatorThatReturnsThem) {
  Graph graph = inferred(kBatchNorm);
  Node& norm = graph.nodes[3];
  norm.op = "aten::native_batch_norm";
  norm.source = {"model.py", 12};
  try {
    (void)whole_batch_statistics(graph);
    FAIL();
  } catch (const TraceError& error) {
    EXPECT_STREQ(error.what(),
                 "sync_batch_norm: aten::native_batch_norm (node 'norm', module 'bn', model.py:12) "
                 "returns the statistics of its rows, which only torch.nn.functional.batch_norm "
                 "leaves to the whole batch.\n  Call that instead, or leave sync_batch_norm off.");
  }
}

TEST(RowMixes, LeaveBatchNormAlone) { EXPECT_TRUE(row_mixes(inferred(kBatchNorm)).empty()); }

TEST(Extract, ClonesRowFreeNodesAndTakesInputsFromOtherStages) {
  const Graph graph = inferred(kBatchNorm);
  const Graph stage = extract(graph, nodes(graph, {"last"}), {*graph.find_value("y")});
  verify(stage);
  EXPECT_EQ(print(stage), R"(graph bn(%b) -> (%y)
  parameter w: float32[4, 4]
  node mask = aten::triu(%w, 1) -> %t in first
    result t: float32[4, 4]
  input b: float32[B, 4] apart(0)
  node last = aten::linear(%b, %t, none) -> %y
    result y: float32[B, 4] apart(0)
)");
}

TEST(Extract, RunsCountersInTheStageOfTheirModule) {
  const Graph graph = inferred(kBatchNorm);
  const Graph first = extract(graph, nodes(graph, {"first"}), {*graph.find_value("a")});
  const Graph second = extract(graph, nodes(graph, {"norm"}), {*graph.find_value("b")});
  verify(first);
  verify(second);
  EXPECT_FALSE(first.find_node("count").has_value());
  EXPECT_TRUE(second.find_node("count").has_value());
  EXPECT_TRUE(second.find_value("bn.count").has_value());
}

TEST(Extract, OfAllNodesIsTheWholeGraph) {
  const Graph graph = inferred(kInPlace);
  EXPECT_EQ(
      extract(graph, nodes(graph, {"conv1", "relu1", "conv2", "add", "conv3"}), graph.outputs),
      graph);
}

TEST(DropDeadNodes, KeepsWritesThatAreReadLaterAndState) {
  const Graph graph = parse(R"(graph dead(%x, %unused) -> (%h)
  input x: float32[B, 4] apart(0)
  input unused: float32[B, 4] apart(0)
  buffer count: int64[]
  node exp = aten::exp(%x) -> %h
    result h: float32[B, 4]
  node write = aten::relu_(%h) -> %h2 writes %h
    result h2: float32[B, 4] shares %h
  node dead = aten::exp(%h2) -> %d
    result d: float32[B, 4]
  node dead_write = aten::relu_(%d) -> %d2 writes %d
    result d2: float32[B, 4] shares %d
  node step = aten::add_.Tensor(%count, 1, 1) -> %c writes %count
    result c: int64[] shares %count
)");
  const Graph live = drop_dead_nodes(graph);
  verify(live);
  EXPECT_EQ(names(live, {{0}, {1}, {2}}), (Names{"exp", "write", "step"}));
  EXPECT_EQ(live.nodes.size(), 3U);
  EXPECT_EQ(live.inputs.size(), 2U);
}

TEST(DropDeadNodes, KeepsAViewOnlyWhereSomethingReadsIt) {
  const Graph graph = parse(R"(graph views(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  node exp = aten::exp(%x) -> %h
    result h: float32[B, 4]
  node unread = aten::view(%h, [4*B]) -> %v
    result v: float32[4*B] shares %h
  node written = aten::view(%h, [B, 2, 2]) -> %w
    result w: float32[B, 2, 2] shares %h
  node write = aten::relu_(%w) -> %w2 writes %w
    result w2: float32[B, 2, 2] shares %h
  node tanh = aten::tanh(%h) -> %y
    result y: float32[B, 4]
)");
  const Graph live = drop_dead_nodes(graph);
  verify(live);
  EXPECT_EQ(names(live, {{0}, {1}, {2}, {3}}), (Names{"exp", "written", "write", "tanh"}));
  EXPECT_EQ(live.nodes.size(), 4U);
}

TEST(LeadingTo, SeesWritesThroughViewsAndLeavesOtherHeadsOut) {
  const Graph graph = parse(R"(graph heads(%x) -> (%y, %z)
  input x: float32[B, 4] apart(0)
  node exp = aten::exp(%x) -> %h
    result h: float32[B, 4]
  node copy = aten::tanh(%h) -> %c
    result c: float32[B, 4]
  node view = aten::view(%c, [B, 2, 2]) -> %v
    result v: float32[B, 2, 2] shares %c
  node write = aten::relu_(%v) -> %w writes %v
    result w: float32[B, 2, 2] shares %c
  node left = aten::exp(%c) -> %y
    result y: float32[B, 4]
  node inner = aten::sin(%h) -> %i
    result i: float32[B, 4]
  node right = aten::exp(%i) -> %z
    result z: float32[B, 4]
)");
  const auto of = [&](const std::vector<ValueId>& outputs) {
    Names found;
    const std::vector<bool> leading = leading_to(graph, outputs);
    for (size_t i = 0; i < leading.size(); ++i) {
      if (leading[i]) found.push_back(graph.values[i].name);
    }
    return found;
  };
  EXPECT_EQ(of({graph.outputs[0]}), (Names{"x", "h", "c", "v", "w", "y"}));
  EXPECT_EQ(of({graph.outputs[1]}), (Names{"x", "h", "i", "z"}));
  EXPECT_EQ(of({}), Names{});
}

TEST(RowMixes, BeginWhereABatchMeanMeetsRows) {
  const Graph graph = inferred(R"(graph centre(%x) -> (%z)
  input x: float32[B, 4] apart(0)
  node mean = aten::mean.dim(%x, [0], false, none) -> %m
    result m: float32[4]
  node centre = aten::sub.Tensor(%x, %m, 1) -> %y
    result y: float32[B, 4]
  node exp = aten::exp(%y) -> %z
    result z: float32[B, 4]
  node unused = aten::cumsum(%x, 0, none) -> %u
    result u: float32[B, 4]
)");
  const auto mixes = row_mixes(graph);
  ASSERT_EQ(mixes.size(), 1U);
  EXPECT_EQ(graph[mixes[0].node].name, "centre");
  EXPECT_EQ(mixes[0].reason,
            "aten::sub.Tensor uses a mean or sum over the batch together with rows");
}

TEST(RowMixes, IncludeWritesOfBatchDataToBuffers) {
  const Graph graph = inferred(R"(graph queue(%x) -> (%x)
  input x: float32[B, 4] apart(0)
  buffer centre: float32[4]
  node mean = aten::mean.dim(%x, [0], false, none) -> %m
    result m: float32[4]
  node update = aten::copy_(%centre, %m, false) -> %c writes %centre
    result c: float32[4] shares %centre
)");
  const auto mixes = row_mixes(graph);
  ASSERT_EQ(mixes.size(), 1U);
  EXPECT_EQ(mixes[0].reason,
            "aten::copy_ writes what it computes from the batch to the buffer 'centre'");
}

TEST(RowMixes, ForgiveRowNumbersThatPairEachRowWithItsOwnIndex) {
  // Sequence classification in transformers: logits[arange(B), last_token].
  const Graph graph = inferred(R"(graph pooled(%x, %last) -> (%y)
  input x: float32[B, 7, 4] apart(0)
  input last: int64[B] apart(0)
  node rows = aten::arange(B, 4) -> %r
    result r: int64[B]
  node pick = aten::index.Tensor(%x, {%r, %last}) -> %y
    result y: float32[B, 4]
)");
  EXPECT_EQ(graph[*graph.find_value("y")].rows, (Rows{.kind = RowKind::apart, .dim = 0}));
  EXPECT_TRUE(row_mixes(graph).empty());
}

TEST(RowMixes, ForgiveRowNumbersThatBroadcastAgainstOtherIndices) {
  // Attention masks in transformers: padding[arange(B)[:, None, None], arange(7)].
  const Graph graph = inferred(R"(graph mask(%padding) -> (%y)
  input padding: boolean[B, 7] apart(0)
  node rows = aten::arange(B, 4) -> %r
    result r: int64[B]
  node alias = aten::detach(%r) -> %a
    result a: int64[B] shares %r
  node all = aten::slice.Tensor(%a, 0, 0, 9223372036854775807, 1) -> %s
    result s: int64[B] shares %r
  node first = aten::unsqueeze(%s, 1) -> %u
    result u: int64[B, 1] shares %r
  node second = aten::unsqueeze(%u, 2) -> %v
    result v: int64[B, 1, 1] shares %r
  node places = aten::arange(7, 4) -> %places
    result places: int64[7]
  node pick = aten::index.Tensor(%padding, {%v, %places}) -> %y
    result y: boolean[B, 1, 7]
)");
  EXPECT_EQ(graph[*graph.find_value("y")].rows, (Rows{.kind = RowKind::apart, .dim = 0}));
  EXPECT_TRUE(row_mixes(graph).empty());
}

TEST(RowMixes, ForgiveNumbersOfSeveralElementsPerRowThatPickThemselves) {
  // Multiple choice in transformers: three texts per row, flattened, and their padding mask.
  const auto picked = [](const std::string& count, const std::string& layout) {
    const Graph graph = inferred(fmt::format(R"(graph mask(%padding) -> (%y)
  input padding: boolean[3*B, 7] apart(0, {1})
  node rows = aten::arange({0}, 4) -> %r
    result r: int64[{0}]
  node column = aten::view(%r, [{0}, 1]) -> %v
    result v: int64[{0}, 1] shares %r
  node places = aten::arange(7, 4) -> %places
    result places: int64[7]
  node pick = aten::index.Tensor(%padding, {{%v, %places}}) -> %y
    result y: boolean[{0}, 7]
)",
                                             count, layout));
    const Rows rows = graph[*graph.find_value("y")].rows;
    return std::pair(rows, row_mixes(graph).size());
  };
  EXPECT_EQ(picked("3*B", "inner=3"),
            (std::pair(Rows{.kind = RowKind::apart, .dim = 0, .inner = 3}, size_t{0})));
  // The first B of 3 * B elements; and in a share, element 1 of each of three parts is elsewhere.
  EXPECT_EQ(picked("B", "inner=3").second, 1U);
  EXPECT_EQ(picked("3*B", "outer=3").second, 1U);
}

TEST(RowMixes, BlameRowNumbersThatDoMoreThanPickTheirRow) {
  // The node that uses %r, and where mixing begins: with the numbers themselves.
  const auto mixes_of = [](const std::string& nodes) {
    return row_mixes(inferred(R"(graph numbers(%x) -> (%y)
  input x: float32[B, 9] apart(0)
  node rows = aten::arange(B, 4) -> %r
    result r: int64[B]
)" + nodes))
        .size();
  };
  // Column b of row b: in a share, row b has another number.
  EXPECT_EQ(mixes_of("  node n = aten::index.Tensor(%x, {%r, %r}) -> %y\n result y: float32[B]\n"),
            1U);
  // The rows from the last on.
  EXPECT_EQ(mixes_of("  node m = aten::neg(%r) -> %m\n result m: int64[B]\n"
                     "  node n = aten::index.Tensor(%x, {%m}) -> %y\n result y: float32[B, 9]\n"),
            1U);
  // Numbers that were changed in place before they are used.
  EXPECT_EQ(mixes_of("  node m = aten::add_.Tensor(%r, 1, 1) -> %m writes %r\n"
                     " result m: int64[B] shares %r\n"
                     "  node n = aten::index.Tensor(%x, {%r}) -> %y\n result y: float32[B, 9]\n"),
            1U);
  EXPECT_EQ(mixes_of("  node n = aten::add.Tensor(%x, %r, 1) -> %y\n result y: float32[B, 9]\n"),
            1U);
}

TEST(InferRows, SeesWhatAWriteThroughAViewDidToItsBase) {
  const Graph graph = inferred(R"(graph base(%x) -> (%y)
  input x: float32[B, 4] apart(0)
  node zeros = aten::zeros([4], 6) -> %h
    result h: float32[4]
  node view = aten::slice.Tensor(%h, 0, 0, 2, 1) -> %v
    result v: float32[2] shares %h
  node mean = aten::mean.dim(%x, [0], false, none) -> %m
    result m: float32[4]
  node part = aten::slice.Tensor(%m, 0, 0, 2, 1) -> %p
    result p: float32[2] shares %m
  node copy = aten::copy_(%v, %p, false) -> %v2 writes %v
    result v2: float32[2] shares %h
  node read = aten::exp(%h) -> %y
    result y: float32[4]
)");
  EXPECT_EQ(graph[*graph.find_value("v2")].rows.kind, RowKind::mean);
  EXPECT_EQ(graph[*graph.find_value("y")].rows.kind, RowKind::mixed);
}

}  // namespace
}  // namespace rannc::ir
