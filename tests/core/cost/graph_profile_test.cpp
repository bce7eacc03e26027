#include "rannc/cost/graph_profile.h"

#include <gtest/gtest.h>

#include <limits>

#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

/// The example of docs/planner-files.md, in the form that to_json() writes.
const std::string kTiny =
    R"({"format": "rannc-graph-profile", "version": 1, "name": "tiny", "dtype": "float32", "rows": [1, 4],
 "inputs": [
  {"name": "x", "bytes_per_row": 400}],
 "params": [
  {"id": "emb.weight", "bytes": 8000},
  {"id": "mlp.weight", "bytes": 4000, "trainable": false, "optimizer_bytes": 12}],
 "nodes": [
  {"name": "emb", "op": "embedding", "inputs": ["x"], "params": ["emb.weight"], "outputs": [{"bytes_per_row": 1000}, {"fixed_bytes": 2, "grad": false}],
   "forward_ns": [100, 400], "backward_ns": [200, 800], "saved_bytes": [400, 1600], "workspace_bytes": [0, 0]},
  {"name": "head", "op": "linear", "inputs": ["emb", "emb:1"], "params": ["emb.weight", "mlp.weight"], "outputs": [{"bytes_per_row": 1.5, "fixed_bytes": 4}],
   "forward_ns": [100, 400.25], "backward_ns": [200, 800], "saved_bytes": [1000, 4000], "workspace_bytes": [64, 64], "group": "g"}]}
)";

std::string error_of(const std::string& text) {
  try {
    (void)graph_profile_from_json(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// The error after `from` in kTiny has become `to`.
std::string error_with(const std::string& from, const std::string& to) {
  std::string text = kTiny;
  text.replace(text.find(from), from.size(), to);
  return error_of(text);
}

TEST(GraphProfileFile, WritesWhatItReads) {
  EXPECT_EQ(to_json(graph_profile_from_json(kTiny)), kTiny);
}

/// kTiny in version 2.
std::string second(const std::string& saved) {
  std::string text = kTiny;
  const auto put = [&](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  put("\"version\": 1", "\"version\": 2");
  put("\"op\": \"linear\"",
      R"("op": "linear", "module": "top", "source": "m.py:3", "adds_in_place": true)");
  put("\"group\": \"g\"}]}", "\"group\": \"g\"}],\n \"saved\": [" + saved + "]}");
  return text;
}

TEST(GraphProfileFile, OfVersionTwoSaysWhatNodesSaveTogether) {
  const std::string text = second("\n  {\"nodes\": [\"emb\", \"head\"], \"bytes\": [8, 32]}");
  const GraphProfile profile = graph_profile_from_json(text);
  EXPECT_EQ(to_json(profile), text);
  EXPECT_EQ(profile.saved, (std::vector<SavedStorage>{{{0, 1}, {8, 32}}}));
  EXPECT_TRUE(profile.nodes[1].adds_in_place);
  EXPECT_EQ(profile.nodes[1].module, "top");
  EXPECT_EQ(error_of(second(R"({"nodes": ["x"], "bytes": [8, 32]})")),
            "graph profile: $.saved[0].nodes[0]: 'x' is no node");
  EXPECT_EQ(error_of(second(R"({"nodes": ["head", "emb"], "bytes": [8, 32]})")),
            "graph profile: $.saved[0].nodes[1]: is not behind the node before it");
  EXPECT_EQ(error_of(second(R"({"nodes": [], "bytes": [8, 32]})")),
            "graph profile: $.saved[0].nodes: names no node");
  EXPECT_EQ(error_of(second(R"({"nodes": ["emb"], "bytes": [8]})")),
            "graph profile: $.saved[0].bytes: 1 numbers, but 'rows' has 2");
}

TEST(GraphProfileFile, OfVersionTwoMayHaveTimesOfTheHost) {
  std::string text = second("");
  const std::string group = ", \"group\": \"g\"";
  text.insert(text.find(group), R"(, "forward_host_ns": [7, 9])");
  const GraphProfile profile = graph_profile_from_json(text);
  EXPECT_EQ(to_json(profile), text);
  EXPECT_TRUE(profile.has_host_times());
  EXPECT_FALSE(graph_profile_from_json(kTiny).has_host_times());
  text.replace(text.find("[7, 9]"), 6, "[7]");
  EXPECT_EQ(error_of(text),
            "graph profile: $.nodes[1].forward_host_ns: 1 numbers, but 'rows' has 2");
  const std::string first = error_with(group, ", \"forward_host_ns\": [7, 9]" + group);
  EXPECT_NE(first.find("forward_host_ns"), std::string::npos) << first;
}

TEST(GraphProfileFile, KnowsTheUsesOfEveryNode) {
  const GraphProfile profile = graph_profile_from_json(kTiny);
  const ProfileNode& head = profile.nodes[1];
  EXPECT_EQ(head.inputs, (std::vector<ProfileUse>{{false, 0, 0}, {false, 0, 1}}));
  EXPECT_EQ(profile.nodes[0].inputs, (std::vector<ProfileUse>{{true, 0, 0}}));
  EXPECT_EQ(head.params, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(head.outputs[0].size.at(4), 10);
}

TEST(GraphProfileFile, NamesTheFormatVersionOrKeyThatIsUnknown) {
  EXPECT_EQ(error_with("\"version\": 1", "\"version\": 3"),
            "graph profile: $.version: version 3 of 'rannc-graph-profile' is unknown; this program "
            "reads versions 1 to 2");
  EXPECT_NE(error_with("\"group\": \"g\"", "\"module\": \"g\"").find("unknown key 'module'"),
            std::string::npos);
  EXPECT_EQ(error_with("\"dtype\"", "\"dtypes\""),
            "graph profile: $: unknown key 'dtypes'; did you mean 'dtype'?");
  EXPECT_EQ(error_with("\"group\"", "\"groups\""),
            "graph profile: $.nodes[1]: unknown key 'groups'; did you mean 'group'?");
}

TEST(GraphProfileFile, NamesWhatOccursTwice) {
  EXPECT_EQ(error_with("\"head\"", "\"emb\""),
            "graph profile: $.nodes[1].name: the name 'emb' occurs twice");
  EXPECT_EQ(error_with("\"name\": \"emb\"", "\"name\": \"x\""),
            "graph profile: $.nodes[0].name: the name 'x' occurs twice");
  EXPECT_EQ(error_with("\"id\": \"mlp.weight\"", "\"id\": \"emb.weight\""),
            "graph profile: $.params[1].id: parameter 'emb.weight' occurs twice");
}

TEST(GraphProfileFile, NamesUsesOfNothing) {
  EXPECT_EQ(error_with("\"emb:1\"", "\"emb:2\""),
            "graph profile: $.nodes[1].inputs[1]: 'emb' has 2 outputs; 'emb:2' is not among them");
  EXPECT_EQ(error_with("\"emb:1\"", "\"head\""),
            "graph profile: $.nodes[1].inputs[1]: 'head' is not an earlier node: nodes must be "
            "in a topological order, without cycles");
  EXPECT_EQ(
      error_with("\"emb:1\"", "\"emb:one\""),
      "graph profile: $.nodes[1].inputs[1]: expected 'node' or 'node:number', found 'emb:one'");
  EXPECT_EQ(error_with("[\"emb.weight\", \"mlp.weight\"]", "[\"w\"]"),
            "graph profile: $.nodes[1].params[0]: parameter 'w' is not in 'params'");
}

TEST(GraphProfileFile, NamesNumbersThatCannotBe) {
  EXPECT_EQ(error_with("400.25", "-400.25"),
            "graph profile: $.nodes[1].forward_ns[1]: expected a number of at least 0, found "
            "-400.25");
  EXPECT_EQ(error_with("[100, 400.25]", "[100]"),
            "graph profile: $.nodes[1].forward_ns: 1 numbers, but 'rows' has 2");
  EXPECT_EQ(error_with("\"rows\": [1, 4]", "\"rows\": [4, 4]"),
            "graph profile: $.rows[1]: rows must be at least 1 and rise strictly, found 4");
  EXPECT_EQ(error_with("\"rows\": [1, 4]", "\"rows\": [0, 4]"),
            "graph profile: $.rows[0]: expected an integer of at least 1, found 0");
}

TEST(GraphProfileVerify, NamesThePathOfANumberThatIsNotFinite) {
  GraphProfile profile = graph_profile_from_json(kTiny);
  profile.nodes[1].backward_ns[1] = std::numeric_limits<double>::quiet_NaN();
  try {
    verify(profile);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "graph profile: $.nodes[1].backward_ns[1]: expected a finite number of at least 0, "
        "found nan");
  }
}

TEST(CostAt, IsLinearBetweenPointsAndExtendsTheNearestSegment) {
  const std::vector<int64_t> points{2, 4, 8};
  const std::vector<double> values{10, 30, 40};
  EXPECT_EQ(cost_at(values, points, 2), 10);
  EXPECT_EQ(cost_at(values, points, 3), 20);
  EXPECT_EQ(cost_at(values, points, 6), 35);
  EXPECT_EQ(cost_at(values, points, 8), 40);
  // Right: 2.5 per row more; left: 10 per row less, and never below 0.
  EXPECT_EQ(cost_at(values, points, 10), 45);
  EXPECT_EQ(cost_at({15, 30, 40}, points, 1), 7.5);
  EXPECT_EQ(cost_at(values, points, 0.5), 0);
}

TEST(CostAt, IsProportionalWithOnePoint) { EXPECT_EQ(cost_at({30}, {4}, 6), 45); }

}  // namespace
}  // namespace rannc::cost
