#include "rannc/ir/match.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "rannc/ir/draws.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

/// Two branches, as a model traces them that goes through a set: a constant tensor and a scripted
/// function in each, and a buffer that both write.
constexpr std::string_view kTwoBranches =
    R"(graph heads(%x) -> (%y, %left)
  input x: float32[B, 4] apart(0)
  parameter a.weight: float32[4, 4] grad
  parameter b.weight: float32[4, 4] grad also b.tied, c.tied
  buffer calls: int64[]
  node add_ = aten::add_.Tensor(%calls, 1, 1) -> %calls2 writes %calls
    result calls2: int64[] shares %calls
  constant constant: float32[4] #0
  node left = aten::linear(%x, %a.weight, %constant) -> %left in a
    result left: float32[B, 4] apart(0) grad
  node f = f(%left) -> %f scripted #1 in a
    result f: float32[B, 4] apart(0, unproved) grad
  node mul_ = aten::mul_.Scalar(%calls, 2) -> %calls3 writes %calls
    result calls3: int64[] shares %calls
  constant constant_1: float32[4] #2
  node right = aten::linear(%x, %b.weight, %constant_1) -> %right in b
    result right: float32[B, 4] apart(0) grad
  node f_1 = f(%right) -> %f_1 scripted #3 in b
    result f_1: float32[B, 4] apart(0, unproved) grad
  node sub = aten::sub.Tensor(%f, %f_1, 1) -> %y
    result y: float32[B, 4] apart(0, unproved) grad
)";

/// The same by a rank that took the branches in the other order: other names, other numbers.
constexpr std::string_view kOtherOrder =
    R"(graph heads(%x) -> (%y, %linear)
  buffer calls: int64[]
  input x: float32[B, 4] apart(0)
  parameter b.weight: float32[4, 4] grad also c.tied, b.tied
  parameter a.weight: float32[4, 4] grad
  constant constant: float32[4] #0
  node right = aten::linear(%x, %b.weight, %constant) -> %right in b
    result right: float32[B, 4] apart(0) grad
  node f = f(%right) -> %f scripted #1
    result f: float32[B, 4] apart(0, unproved) grad
  node add_ = aten::add_.Tensor(%calls, 1, 1) -> %calls2 writes %calls
    result calls2: int64[] shares %calls
  constant constant_1: float32[4] #2
  node linear = aten::linear(%x, %a.weight, %constant_1) -> %linear in a
    result linear: float32[B, 4] apart(0) grad
  node mul_ = aten::mul_.Scalar(%calls, 2) -> %calls3 writes %calls
    result calls3: int64[] shares %calls
  node f_1 = f(%linear) -> %f_1 scripted #3
    result f_1: float32[B, 4] apart(0, unproved) grad
  node sub = aten::sub.Tensor(%f_1, %f, 1) -> %y
    result y: float32[B, 4] apart(0, unproved) grad
)";

std::vector<std::string> names(std::string_view prefix, size_t count) {
  std::vector<std::string> all;
  for (size_t index = 0; index < count; ++index) {
    all.push_back(std::string(prefix) + std::to_string(index));
  }
  return all;
}

NamedGraph named(const Graph& graph, std::vector<std::string> objects = {}) {
  return {&graph, names("in", graph.inputs.size()), names("out", graph.outputs.size()),
          std::move(objects)};
}

std::vector<uint32_t> indices(const std::vector<ObjectId>& ids) {
  std::vector<uint32_t> all;
  for (ObjectId id : ids) all.push_back(id.index);
  return all;
}

TEST(Match, FindsTheBranchesOfTheOtherOrder) {
  const Graph reference = parse(kTwoBranches);
  const Graph other = parse(kOtherOrder);
  const Match found = match(named(reference, {"tensor 1", "f", "tensor 2", "f"}),
                            named(other, {"tensor 2", "f", "tensor 1", "f"}), false);
  EXPECT_EQ(found.difference, "");
  // Both functions have one text; the branch that each is in tells them apart.
  EXPECT_EQ(indices(found.objects), (std::vector<uint32_t>{2, 3, 0, 1}));
}

TEST(Match, ObjectsThatAreOthersAreADifference) {
  const Graph reference = parse(kTwoBranches);
  const Graph other = parse(kOtherOrder);
  EXPECT_EQ(match(named(reference, {"tensor 1", "f", "tensor 2", "f"}),
                  named(other, {"tensor 1", "f", "tensor 1", "f"}), false)
                .difference,
            "constant 'constant_1' differs from constant 'constant':\n"
            "  constant constant_1: float32[4] #2\n"
            "  constant constant: float32[4] #0\n"
            "  #2 is tensor 2\n"
            "  #0 is tensor 1");
}

/// The difference of kTwoBranches to itself with `from`, of which there must be one, turned `to`.
std::string edited(std::string_view from, std::string_view to) {
  std::string text(kTwoBranches);
  const size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  EXPECT_EQ(text.find(from, place + 1), std::string::npos) << from;
  text.replace(place, from.size(), to);
  const Graph reference = parse(kTwoBranches);
  const Graph other = parse(text);
  verify(other);
  const std::vector<std::string> objects{"tensor 1", "f", "tensor 2", "f"};
  return match(named(reference, objects), named(other, objects), false).difference;
}

TEST(Match, WhatChangesTheNumbersIsADifference) {
  EXPECT_EQ(edited("sub.Tensor(%f, %f_1, 1)", "sub.Tensor(%f_1, %f, 1)"),
            "node 'f' (module 'a', unknown source) differs from node 'f_1' (module 'b', unknown "
            "source):\n"
            "  node f = f(%left) -> %f scripted #1 in a\n"
            "  node f_1 = f(%right) -> %f_1 scripted #3 in b");
  EXPECT_EQ(edited("sub.Tensor(%f, %f_1, 1)", "sub.Tensor(%f, %f_1, 2)"),
            "node 'sub' (module '', unknown source) differs from node 'sub' (module '', unknown "
            "source):\n"
            "  node sub = aten::sub.Tensor(%f, %f_1, 1) -> %y\n"
            "  node sub = aten::sub.Tensor(%f, %f_1, 2) -> %y");
  EXPECT_EQ(edited("a.weight: float32[4, 4]", "a.weight: float32[5, 4]"),
            "parameter 'a.weight' differs from parameter 'a.weight':\n"
            "  parameter a.weight: float32[4, 4] grad\n"
            "  parameter a.weight: float32[5, 4] grad");
  EXPECT_EQ(edited("a.weight: float32[4, 4] grad", "a.weight: float32[4, 4]"),
            "parameter 'a.weight' differs from parameter 'a.weight':\n"
            "  parameter a.weight: float32[4, 4] grad\n"
            "  parameter a.weight: float32[4, 4]\n"
            "  One requires a gradient, and the other does not. Freeze the model's parameters on "
            "every rank alike, not those of an optimizer's groups, which hold a rank's own.");
  EXPECT_EQ(edited("graph heads", "graph tails"), "the graphs are called 'heads' and 'tails'");
  EXPECT_EQ(edited("-> (%y, %left)", "-> (%y)"), "the outputs are out0, out1 and out0");
  EXPECT_EQ(edited("-> (%y, %left)", "-> (%y, %x)"),
            "out1 is result 'left' of node 'left' (module 'a', unknown source), but input 'x'");
  EXPECT_NE(edited(" also b.tied, c.tied", ""), "");
  EXPECT_NE(edited("scripted #1 in a", "python #1 in a"), "");
  EXPECT_NE(edited("-> %left in a", "-> %left no_grad in a"), "");
  EXPECT_NE(edited("-> %left in a", "-> %left by_share in a"), "");
  EXPECT_NE(edited("-> %left in a", "-> %left whole_batch in a"), "");
  EXPECT_NE(edited("left: float32[B, 4] apart(0) grad", "left: float32[B, 4] apart(0)"), "");
  EXPECT_NE(edited("left: float32[B, 4]", "left: float64[B, 4]"), "");
  EXPECT_NE(
      edited("right: float32[B, 4] apart(0) grad", "right: float32[B, 4] apart(0) grad shares %x"),
      "");
  EXPECT_NE(edited("  parameter a.weight: float32[4, 4] grad\n",
                   "  parameter a.weight: float32[4, 4] grad\n  parameter c: float32[4] grad\n"),
            "");
}

TEST(Match, NamesModulesAndPlacesDoNotMatter) {
  EXPECT_EQ(edited("node left = aten", "node another = aten"), "");
  EXPECT_EQ(edited("-> %left in a", "-> %left in b at \"b.py\":3"), "");
}

/// Writes in the order a, b; the text says who reads the buffer, and when.
std::string writes(std::string_view first, std::string_view second) {
  return "graph g() -> (%seen)\n  buffer calls: int64[]\n" + std::string(first) +
         std::string(second) +
         "  node read = aten::neg(%calls) -> %seen\n    result seen: int64[]\n";
}

TEST(Match, WritesToAStorageKeepTheirOrder) {
  const std::string add =
      "  node add_ = aten::add_.Tensor(%calls, 1, 1) -> %a writes %calls\n"
      "    result a: int64[] shares %calls\n";
  const std::string multiply =
      "  node mul_ = aten::mul_.Scalar(%calls, 2) -> %m writes %calls\n"
      "    result m: int64[] shares %calls\n";
  const Graph reference = parse(writes(add, multiply));
  const Graph other = parse(writes(multiply, add));
  EXPECT_EQ(match(named(reference), named(reference), false).difference, "");
  EXPECT_NE(match(named(reference), named(other), false).difference, "");

  // Nobody takes what the write returns, and the reader takes the buffer itself.
  const std::string text = writes(add, multiply);
  const size_t read = text.find("  node read");
  std::string early = text.substr(0, text.find("  node mul_")) + text.substr(read);
  early += multiply;
  EXPECT_EQ(match(named(reference), named(parse(early)), false).difference,
            "node 'read' (module '', unknown source) takes 'calls' as node 'mul_' (module '', "
            "unknown source) has written it, but node 'read' (module '', unknown source) takes "
            "'calls' as node 'add_' (module '', unknown source) has written it");
}

TEST(Match, RandomNumbersAreDrawnInOneOrder) {
  const auto drawing = [](std::string_view first, std::string_view second) {
    return parse("graph g(%x) -> (%a, %b)\n  input x: float32[B]\n" + std::string(first) +
                 std::string(second));
  };
  const std::string a = "  node a = aten::dropout(%x, 0.1, true) -> %a\n    result a: float32[B]\n";
  const std::string b = "  node b = aten::dropout(%x, 0.1, true) -> %b\n    result b: float32[B]\n";
  const Graph reference = drawing(a, b);
  const Graph other = drawing(b, a);
  EXPECT_EQ(match(named(reference), named(other), false).difference,
            "node 'a' (module '', unknown source) draws random numbers first of all, but node 'a' "
            "(module '', unknown source) after node 'b' (module '', unknown source)");
  EXPECT_EQ(match(named(reference), named(other), /*keyed_draws=*/true).difference, "");

  // Without dropout's training there is no such order.
  const auto evaluated = [](std::string text) {
    return text.replace(text.find("true"), 4, "false");
  };
  EXPECT_EQ(match(named(drawing(evaluated(a), evaluated(b))),
                  named(drawing(evaluated(b), evaluated(a))), false)
                .difference,
            "");
}

TEST(Match, ResultsOfANodeKeepTheirPlaces) {
  const auto halves = [](std::string_view outputs) {
    return parse("graph g(%x) -> (" + std::string(outputs) +
                 ")\n  input x: float32[B, 2]\n"
                 "  node chunk = aten::chunk(%x, 2, 1) -> %a, %b\n"
                 "    result a: float32[B, 1] shares %x\n    result b: float32[B, 1] shares %x\n");
  };
  EXPECT_EQ(match(named(halves("%a, %b")), named(halves("%a, %b")), false).difference, "");
  EXPECT_NE(match(named(halves("%a, %b")), named(halves("%b, %a")), false).difference, "");
  EXPECT_NE(match(named(halves("%a")), named(halves("%b")), false).difference, "");
}

TEST(Match, TwinsMatchWhicheverCameFirst) {
  const auto twins = [](std::string_view operands) {
    return parse(
        "graph g(%x) -> (%y)\n  input x: float32[B]\n"
        "  node a = aten::relu(%x) -> %a\n    result a: float32[B]\n"
        "  node b = aten::relu(%x) -> %b\n    result b: float32[B]\n"
        "  node y = aten::sub.Tensor(" +
        std::string(operands) + ", 1) -> %y\n    result y: float32[B]\n");
  };
  EXPECT_EQ(match(named(twins("%a, %b")), named(twins("%b, %a")), false).difference, "");
  // One node is no pair of twins: with a gradient, torch would add up in another way.
  EXPECT_NE(match(named(twins("%a, %b")), named(twins("%a, %a")), false).difference, "");
  EXPECT_NE(match(named(twins("%a, %a")), named(twins("%a, %b")), false).difference, "");
}

TEST(Match, OperandsThatAreOneValueAreNoPair) {
  const auto difference = [](std::string_view operands) {
    const auto subtracting = [](std::string_view taken) {
      return parse("graph g(%x, %z) -> (%y)\n  input x: float32[]\n  input z: float32[]\n" +
                   std::string("  constant c: float32[] #0\n  constant d: float32[] #1\n") +
                   "  node y = aten::sub.Tensor(" + std::string(taken) +
                   ", 1) -> %y\n    result y: float32[]\n");
    };
    const Graph pair = subtracting(operands);
    const std::string first(operands.substr(0, 2));
    const Graph one = subtracting(first + ", " + first);
    const std::vector<std::string> objects{"1.0", "1.0"};
    return match(named(one, objects), named(pair, objects), false).difference;
  };
  EXPECT_EQ(difference("%x, %x"), "");
  EXPECT_NE(difference("%x, %z"), "");
  EXPECT_EQ(difference("%c, %c"), "");
  EXPECT_NE(difference("%c, %d"), "");
}

TEST(Match, WhatNothingDependsOnMayDiffer) {
  const std::string text =
      "graph g(%x) -> (%y)\n  input x: float32[B, 2]\n"
      "  node y = aten::neg(%x) -> %y\n    result y: float32[B, 2]\n";
  const std::string unused =
      "  constant c: float32[2] #1\n"
      "  node view = aten::expand_as(%c, %x) -> %v\n    result v: float32[B, 2] shares %c\n";
  const Graph with = parse(text + unused);
  const Graph without = parse(text);
  EXPECT_EQ(match(named(without), named(with, {"", "c"}), false).difference, "");
  const Match found = match(named(with, {"", "c"}), named(with, {"", "c"}), false);
  EXPECT_EQ(found.difference, "");
  EXPECT_EQ(indices(found.objects), (std::vector<uint32_t>{ObjectId::kNone, 1}));
  // The executor of the reference runs it all the same, so there must be something to run it on.
  EXPECT_EQ(match(named(with, {"", "c"}), named(without), false).difference,
            "constant 'c': nothing in the second graph is c");
}

TEST(Match, InputsAndOutputsAreFoundByName) {
  const auto swapped = [](std::string_view inputs, std::string_view outputs) {
    return parse("graph g(" + std::string(inputs) + ") -> (" + std::string(outputs) +
                 ")\n  input x: float32[B]\n  input z: float32[B]\n"
                 "  node y = aten::sub.Tensor(%x, %z, 1) -> %y\n    result y: float32[B]\n");
  };
  const Graph reference = swapped("%x, %z", "%y, %x");
  const Graph other = swapped("%z, %x", "%x, %y");
  const std::vector<size_t> second_first{1, 0};
  const Match found =
      match({&reference, {"x", "z"}, {"y", "x"}, {}}, {&other, {"z", "x"}, {"x", "y"}, {}}, false);
  EXPECT_EQ(found.difference, "");
  EXPECT_EQ(found.inputs, second_first);
  EXPECT_EQ(found.outputs, second_first);
  EXPECT_EQ(
      match({&reference, {"x", "z"}, {"y", "x"}, {}}, {&other, {"z", "a"}, {"x", "y"}, {}}, false)
          .difference,
      "the inputs are x, z and z, a");
}

/// A graph of binary operators, some of which write, draw or call an object; every value is an
/// output, so that every node counts.
Graph random_graph(std::mt19937& random) {
  const auto pick = [&](size_t n) { return random() % n; };
  Graph graph;
  graph.name = "g";
  const auto add = [&](const char* name, ValueKind kind) {
    Value value;
    value.name = name;
    value.kind = kind;
    value.dims = {{0, 1}};
    return graph.add_value(value);
  };
  graph.inputs = {add("x", ValueKind::input)};
  add("weight", ValueKind::parameter);
  add("buffer", ValueKind::buffer);
  for (uint32_t index = 0; index < 3 + pick(12); ++index) {
    const auto any = [&] { return ValueId{static_cast<uint32_t>(pick(graph.values.size()))}; };
    Node node;
    node.name = "n" + std::to_string(index);
    const ValueId first = any();
    node.op = "aten::op" + std::to_string(pick(2));
    node.inputs = {first, any(), AffineInt{static_cast<int64_t>(pick(2)), 0}};
    Value result;
    result.name = "v" + std::to_string(index);
    result.dims = {{0, 1}};
    switch (pick(5)) {
      case 0:
        node.op = "aten::write_";
        node.writes = {first};
        result.storage = graph[first].storage;
        break;
      case 1:
        node.op = "aten::view";
        result.storage = graph[first].storage;
        break;
      case 2:
        node.op = "aten::bernoulli";
        break;
      case 3:
        node.kind = OpKind::python;
        node.op = "F";
        node.object = {index};
        break;
      default:
        break;
    }
    node.outputs = {graph.add_value(std::move(result))};
    graph.add_node(std::move(node));
  }
  for (uint32_t index = 3; index < graph.values.size(); ++index) graph.outputs.push_back({index});
  return graph;
}

/// Whether the later node must stay behind the earlier one, by the definition and nothing else.
bool is_bound(const Graph& graph, const Node& earlier, const Node& later) {
  const auto storages = [&](const Node& node) {
    std::set<uint32_t> all;
    for (const Argument& argument : node.inputs) {
      if (const auto* id = std::get_if<ValueId>(&argument)) all.insert(graph[*id].storage.index);
    }
    for (ValueId id : node.outputs) all.insert(graph[id].storage.index);
    return all;
  };
  const auto is_written = [&](const Node& by, const std::set<uint32_t>& touched) {
    return std::ranges::any_of(
        by.writes, [&](ValueId id) { return touched.contains(graph[id].storage.index); });
  };
  const bool takes = std::ranges::any_of(later.inputs, [&](const Argument& argument) {
    const auto* id = std::get_if<ValueId>(&argument);
    return id != nullptr && std::ranges::find(earlier.outputs, *id) != earlier.outputs.end();
  });
  return takes || is_written(earlier, storages(later)) || is_written(later, storages(earlier)) ||
         (earlier.op == "aten::bernoulli" && later.op == "aten::bernoulli");
}

/// The graph with its nodes in `order`, everything renamed and numbered anew. The objects are
/// numbered backward.
Graph reordered(const Graph& graph, const std::vector<uint32_t>& order, size_t objects) {
  Graph result;
  result.name = graph.name;
  std::map<ValueId, ValueId> to;
  const auto add = [&](ValueId id) {
    Value value = graph[id];
    if (value.kind == ValueKind::result) value.name = "r" + std::to_string(to.size());
    value.producer = {};
    value.storage = value.storage == id ? ValueId{} : to.at(value.storage);
    return to[id] = result.add_value(std::move(value));
  };
  for (uint32_t index : {2U, 0U, 1U}) add({index});
  result.inputs = {to.at({0})};
  for (uint32_t index : order) {
    Node node = graph.nodes[index];
    node.name = "m" + std::to_string(result.nodes.size());
    node.outputs = {add(node.outputs[0])};
    for (Argument& argument : node.inputs) {
      if (auto* id = std::get_if<ValueId>(&argument)) *id = to.at(*id);
    }
    for (ValueId& id : node.writes) id = to.at(id);
    if (node.object.valid()) {
      node.object.index = static_cast<uint32_t>(objects) - 1 - node.object.index;
    }
    result.add_node(std::move(node));
  }
  for (ValueId output : graph.outputs) result.outputs.push_back(to.at(output));
  return result;
}

TEST(Match, FollowsEveryOrderThatComputesTheSameAndNoOther) {
  std::mt19937 random(1);
  int same = 0;
  int other = 0;
  for (int round = 0; round < 3000; ++round) {
    const Graph graph = random_graph(random);
    verify(graph);
    const size_t count = graph.nodes.size();
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0U);
    // Neighbours change places at random, now and then against what binds them.
    bool is_same = true;
    for (int swap = 0; swap < 30 && is_same; ++swap) {
      const size_t place = random() % (count - 1);
      const Node& left = graph.nodes[order[place]];
      const Node& right = graph.nodes[order[place + 1]];
      const auto* taken = std::get_if<ValueId>(&right.inputs[0]);
      const auto* also = std::get_if<ValueId>(&right.inputs[1]);
      if (*taken == left.outputs[0] || *also == left.outputs[0]) continue;  // it needs the result
      if (is_bound(graph, left, right)) {
        if (random() % 4 != 0) continue;
        is_same = false;
      }
      std::swap(order[place], order[place + 1]);
    }
    const Graph trace = reordered(graph, order, count);
    verify(trace);
    // Some objects are twins.
    std::vector<std::string> objects;
    for (size_t index = 0; index < count; ++index) objects.push_back(std::to_string(index % 3));
    const std::vector<std::string> backward(objects.rbegin(), objects.rend());
    const Match found = match(named(graph, objects), named(trace, backward), false);
    ASSERT_EQ(found.difference.empty(), is_same) << found.difference << "\n"
                                                 << print(graph) << print(trace);
    (is_same ? same : other) += 1;
    if (!is_same) continue;
    for (const Node& node : graph.nodes) {
      if (!node.object.valid()) continue;
      ASSERT_EQ(found.objects[node.object.index].index, count - 1 - node.object.index);
    }
  }
  EXPECT_GT(same, 500);
  EXPECT_GT(other, 500);
}

}  // namespace
}  // namespace rannc::ir
