#include "rannc/ir/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

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
  node norm = aten::batch_norm(%w, none, none, none, none, true, 0.1, 1e-05, true) -> %n by_share whole_batch
    result n: float32[2*B, 2] apart(0, inner=2) grad
  node product = mine::product(%w, %w) -> %p like aten::mm no_grad
    result p: float32[2*B, 2] mixed grad
  node all = aten::lists(B, -B-1, 2*B+3, [], [1, B], [float], [1.0, -inf, 1e-05], [bool], [true, false])
)";

TEST(Text, PrintsWhatItParses) { EXPECT_EQ(print(parse(kEverything)), kEverything); }

TEST(Text, ParsesWhatItPrints) {
  const Graph graph = parse(kEverything);
  EXPECT_EQ(parse(print(graph)), graph);
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Text, ErrorsNameLineAndColumn) {
  const auto parse_error = [](const std::string& text) {
    return error_of([&] { (void)parse(text); });
  };
  EXPECT_EQ(parse_error("graph g() -> ()\n  inputs x: float32[]"),
            "graph text, line 2, column 3: expected 'graph', 'node', 'input', 'parameter', "
            "'buffer', 'constant' or 'result', but found 'inputs x: float32[]'");
  EXPECT_EQ(parse_error("graph g() -> (%y)"),
            "graph text, line 1, column 15: expected the name of a value that a line declares, but "
            "found '%y)'");
  EXPECT_EQ(
      parse_error("graph g() -> ()\n  input x: floet32[]"),
      "graph text, line 2, column 12: expected a dtype (unknown dtype 'floet32'; did you mean "
      "'float32'?), but found 'floet32[]'");
  EXPECT_EQ(parse_error(""),
            "graph text: needs exactly one line 'graph NAME(INPUTS) -> (OUTPUTS)', but has 0");
}

TEST(Json, RejectsUnknownKeysAndDanglingValuesWithTheirPath) {
  std::string text = to_json(parse(kEverything));
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string copy = text;
    copy.replace(copy.find(from), from.size(), to);
    return error_of([&] { (void)graph_from_json(copy); });
  };
  EXPECT_NE(edited("\"outputs\":[7", "\"outputs\":[77").find("graph: $.outputs[0]"),
            std::string::npos);
  EXPECT_NE(edited("\"op\":", "\"opp\":").find("graph: $.nodes[0]"), std::string::npos);
  EXPECT_NE(edited("\"dtype\":\"float32\"", "\"dtype\":\"floet32\"").find("did you mean 'float32'"),
            std::string::npos);
}

/// Graphs that verify() accepts, with arguments and properties of every kind.
Graph random_graph(std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto affine = [&] { return AffineInt{pick(9) - 4, pick(3) - 1}; };
  Graph graph;
  graph.name = pick(2) == 0 ? "g" : "a \"strange\"\nname";
  for (int i = 0; i < 1 + pick(3); ++i) {
    Value input;
    input.name = "x" + std::to_string(i);
    input.kind = ValueKind::input;
    input.dims = {{0, 1}, {3, 0}};
    graph.inputs.push_back(graph.add_value(std::move(input)));
  }
  std::shuffle(graph.inputs.begin(), graph.inputs.end(), random);
  for (int i = 0; i < pick(20); ++i) {
    const auto value = [&] {
      return ValueId{static_cast<uint32_t>(pick(static_cast<int>(graph.values.size())))};
    };
    Node node;
    node.name = "n" + std::to_string(i);
    node.op = "aten::op";
    const Argument arguments[] = {None{},
                                  value(),
                                  ValueList{{value(), ValueId{}}},
                                  affine(),
                                  -0.0,
                                  std::numeric_limits<double>::infinity(),
                                  0.1 * pick(99),
                                  true,
                                  std::string("a\\b"),
                                  Device{"cuda"},
                                  std::vector{affine(), affine()},
                                  std::vector<double>{1, 1e300},
                                  std::vector<bool>{true},
                                  ValueList{},
                                  std::vector<double>{}};
    for (int k = 0; k < pick(6); ++k) node.inputs.push_back(arguments[pick(15)]);
    node.module = pick(2) == 0 ? "" : "layers.0";
    node.grad_enabled = pick(2) == 0;
    if (pick(2) == 0) node.source = {"file.py", pick(100)};
    if (pick(3) == 0) node.writes.push_back(value());
    for (int k = 0; k < pick(3); ++k) {
      Value result;
      result.name = "r" + std::to_string(graph.values.size());
      result.dtype = static_cast<DType>(pick(12));
      result.dims = {{pick(5), pick(2)}};
      result.requires_grad = pick(2) == 0;
      node.outputs.push_back(graph.add_value(std::move(result)));
    }
    if (pick(4) == 0) node.outputs.push_back({});
    graph.add_node(std::move(node));
  }
  graph.outputs.push_back({static_cast<uint32_t>(graph.values.size() - 1)});
  return graph;
}

TEST(Text, RoundTripsRandomGraphs) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const Graph graph = random_graph(random);
    ASSERT_NO_THROW(verify(graph));
    ASSERT_EQ(parse(print(graph)), graph) << print(graph);
    ASSERT_EQ(graph_from_json(to_json(graph)), graph) << to_json(graph);
    ASSERT_EQ(print(parse(print(graph))), print(graph));
  }
}

TEST(Fingerprint, IgnoresSourceLinesOnly) {
  Graph graph = parse(kEverything);
  const std::string before = fingerprint(graph);
  EXPECT_EQ(before.size(), 16U);
  graph.nodes[1].source.line = 99;
  EXPECT_EQ(fingerprint(graph), before);
  graph.nodes[1].inputs[1] = std::vector<AffineInt>{{0, 2}, {3, 0}};
  EXPECT_NE(fingerprint(graph), before);
}

TEST(Json, HoldsTheSameGraph) {
  const Graph graph = parse(kEverything);
  EXPECT_EQ(graph_from_json(to_json(graph)), graph);
  EXPECT_EQ(to_json(graph_from_json(to_json(graph))), to_json(graph));
}

}  // namespace
}  // namespace rannc::ir
