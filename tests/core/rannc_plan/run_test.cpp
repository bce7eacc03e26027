#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>

#include "rannc_plan/example_files.h"

namespace rannc::rannc_plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Program : public testing::Files {
 protected:
  [[nodiscard]] Answer plan(std::vector<std::string> more) const {
    more.insert(more.begin(), {"plan", "--graph", "@graph.json", "--cluster", "@cluster.toml"});
    return run(more);
  }
  [[nodiscard]] Answer evaluate(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"evaluate", "--graph", "@graph.json", "--cluster", "@cluster.toml",
                               "--request", "@request.json", "--plan", "@plan.json"});
    return run(more);
  }
};

TEST_F(Program, EvaluatesTheExampleOfTheFormatsPage) {
  const Answer answer = evaluate({"--json"});
  EXPECT_EQ(answer.code, kDone) << answer.err;
  // The numbers of sections 4 and 5 of docs/planner-files.md.
  EXPECT_THAT(answer.out, HasSubstr("\"valid\": true"));
  EXPECT_THAT(answer.out, HasSubstr("\"iteration_ns\": 234387"));
  EXPECT_THAT(answer.out, HasSubstr("\"reduce_ns\": 4020"));
  EXPECT_THAT(answer.out, HasSubstr("\"peak_bytes\": 57664"));
  // 0 -> 1 crosses hosts: 4 rows of 1000 bytes; both ways 40100 ns.
  EXPECT_THAT(answer.out, HasSubstr("\"forward_ns\": 40100,\n   \"backward_ns\": 40100,\n   "
                                    "\"bytes\": 4000"));
}

TEST_F(Program, SaysWhatIsInvalidAboutAPlanAndStillItsTime) {
  write("request.json", R"({"format": "rannc-plan-request", "version": 1, "global_batch": 8,
                            "micro_batches": [1, 4], "recompute": "always"})");
  const Answer answer = evaluate();
  EXPECT_EQ(answer.code, kDoesNotFit);
  EXPECT_THAT(answer.out, StartsWith("The plan is invalid:\n"
                                     "  the request does not allow 2 micro-batches\n"
                                     "  stage 0 does not recompute, but the request says 'always'\n"
                                     "  stage 1 does not recompute, but the request says 'always'\n"
                                     "\n2 stages on 3 ranks of 4"));
}

TEST_F(Program, TellsAnotherProgramHowFarItIs) {
  const Answer answer = plan({"--request", "@request.json", "--json", "--progress"});
  EXPECT_EQ(answer.code, kDone) << answer.err;
  EXPECT_THAT(answer.err, StartsWith("progress 0."));
  EXPECT_TRUE(answer.err.ends_with("\nprogress 1\n")) << answer.err;
  EXPECT_EQ(answer.out, plan({"--request", "@request.json", "--json"}).out);
}

TEST_F(Program, PlansAndWritesWhatItFinds) {
  const Answer answer = plan({"--request", "@request.json", "-o", "@found.json", "--json"});
  EXPECT_EQ(answer.code, kDone) << answer.err;
  EXPECT_THAT(answer.out, StartsWith("{\"format\": \"rannc-plan\", \"version\": 1, \"feasible\": "
                                     "true"));
  EXPECT_EQ(read("found.json"), answer.out);
  write("plan.json", answer.out);
  EXPECT_EQ(evaluate().code, kDone);
}

TEST_F(Program, TheDefaultRequestNeedsTheRowsOfAGlobalBatch) {
  const Answer without = plan({});
  EXPECT_EQ(without.code, kBadInput);
  EXPECT_EQ(without.err,
            "rannc-plan: a plan needs the rows of a global batch: give --request FILE, or "
            "--global-batch ROWS for the default request\n");
  EXPECT_EQ(plan({"--global-batch", "8", "--json"}).out,
            plan({"--request", "@request.json", "--json"}).out);
  EXPECT_EQ(plan({"--global-batch", "8", "--request", "@request.json"}).code, kBadInput);
}

TEST_F(Program, SaysWhyNothingFitsAndWritesThat) {
  std::string small = testing::kCluster;
  small.replace(small.find("100000"), 6, "1000");
  write("cluster.toml", small);
  const Answer answer = plan({"--request", "@request.json", "-o", "@found.json"});
  EXPECT_EQ(answer.code, kDoesNotFit);
  EXPECT_THAT(answer.err, StartsWith("No plan fits: "));
  EXPECT_THAT(read("found.json"), HasSubstr("\"feasible\": false"));
}

TEST_F(Program, ReplacesAFileAsAWholeAndLeavesNothingBeside) {
  write("found.json", "old");
  EXPECT_EQ(plan({"--request", "@request.json", "-o", "@found.json"}).code, kDone);
  EXPECT_THAT(read("found.json"), StartsWith("{\"format\""));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 5);
}

TEST_F(Program, KnowsThatItCannotWriteBeforeItPlans) {
  const Answer answer = plan({"--request", "@nowhere.json", "-o", "@no/plan.json"});
  EXPECT_EQ(answer.code, kBadInput);
  EXPECT_EQ(answer.err, "rannc-plan: no/plan.json: cannot be written: No such file or directory\n");
}

struct BadFile {
  std::string name, text, message;
};
std::ostream& operator<<(std::ostream& out, const BadFile& file) { return out << file.message; }
class BadInput : public Program, public ::testing::WithParamInterface<BadFile> {};

TEST_P(BadInput, IsOneLineWithFileAndPlace) {
  write(GetParam().name, GetParam().text);
  const Answer answer = evaluate();
  EXPECT_EQ(answer.code, kBadInput);
  EXPECT_EQ(answer.err, "rannc-plan: " + GetParam().name + ": " + GetParam().message + "\n");
  EXPECT_EQ(answer.out, "");
}

std::string graph_with(const std::string& from, const std::string& to) {
  std::string text = testing::kGraph;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

INSTANTIATE_TEST_SUITE_P(
    Graph, BadInput,
    ::testing::Values(
        BadFile{"graph.json", graph_with(R"("inputs": ["x"])", R"("inputs": ["head"])"),
                "$.nodes[0].inputs[0]: 'head' is not an earlier node: nodes must be in a "
                "topological order, without cycles"},
        BadFile{"graph.json", graph_with(R"("inputs": ["x"])", R"("inputs": ["y"])"),
                "$.nodes[0].inputs[0]: 'y' is no graph input and no node"},
        BadFile{"graph.json", graph_with(R"("name": "mlp")", R"("name": "emb")"),
                "$.nodes[1].name: the name 'emb' occurs twice"},
        BadFile{"graph.json", graph_with("[100, 400]", "[100, -400]"),
                "$.nodes[0].forward_ns[1]: expected a number of at least 0, found -400"},
        BadFile{"graph.json", graph_with("[100, 400]", "[100, 1e400]"),
                "line 8, column 28: number overflow parsing '1e400'"},
        BadFile{"graph.json", graph_with("[100, 400]", "[100, 1e300]"),
                "$.nodes[0].forward_ns[1]: expected a number of at most 1e+100, found 1e+300"},
        BadFile{"graph.json", graph_with("[100, 400]", "[100, NaN]"),
                "line 8, column 24: syntax error while parsing value - invalid literal; last "
                "read: '100, N'"},
        BadFile{"graph.json", graph_with("\"version\": 1", "\"version\": 3"),
                "$.version: version 3 of 'rannc-graph-profile' is unknown; this program reads "
                "versions 1 to 2"},
        BadFile{"graph.json", graph_with("\"version\": 1", "\"version\": 1, \"version\": 1"),
                "$: key 'version' occurs twice"},
        BadFile{"graph.json",
                R"({"format": "rannc-graph-profile", "version": 1, "rows": [1], "nodes": []})",
                "$.nodes: is empty, so there is nothing to plan"},
        BadFile{"graph.json", testing::kGraph.substr(0, 40),
                "line 1, column 41: syntax error while parsing object key - invalid string: "
                "missing closing quote; last read: '\"versi'; expected string literal"},
        BadFile{"graph.json", "",
                "line 1, column 1: syntax error while parsing value - "
                "unexpected end of input; expected '[', '{', or a literal"},
        BadFile{"graph.json", "{\"format\": \"\xff\"}",
                "line 1, column 13: syntax error while parsing value - invalid string: ill-formed "
                "UTF-8 byte; last read: '\"?'"},
        BadFile{"graph.json", std::string(100000, '['),
                "$[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]"
                "[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]"
                "[0][0][0][0][0][0][0][0][0][0][0]: nested deeper than 64 levels"},
        BadFile{"graph.json", "{\"format\": \"" + std::string(10'000'000, 'a') + "\"}",
                "line 1, column 12: a string of more than 1048576 bytes"},
        BadFile{"graph.json", graph_with("\"tiny\"", "\"a\\nb\", \"na\\u001bme\": 1"),
                "$: unknown key 'na?me'; did you mean 'name'?"}));

INSTANTIATE_TEST_SUITE_P(
    Others, BadInput,
    ::testing::Values(BadFile{"cluster.toml", "format = 3",
                              "line 1, column 10: format: expected \"rannc-cluster\""},
                      BadFile{"cluster.toml", std::string(70000, '#'),
                              "is larger than 64.0 KiB, the most that is read"},
                      BadFile{
                          "request.json",
                          R"({"format": "rannc-plan-request", "version": 1, "global_batch": 1e19})",
                          "$.global_batch: expected an integer, found 1e+19"},
                      BadFile{"request.json",
                              R"({"format": "rannc-plan-request", "version": 1, "global_batch": 8,
                    "force": {"stages": 5}})",
                              "$.force.stages: 5 stages cannot be placed on 4 ranks by the allowed "
                              "schedules (gpipe, 1f1b)"},
                      BadFile{"plan.json", R"({"format": "rannc-plan", "version": 1})",
                              "$: key 'schedule' is missing"},
                      BadFile{"plan.json", "[1]", "$: expected an object, found an array"}));

TEST_F(Program, AMillionNodesAreTooManyAndSaidSo) {
  std::string text = R"({"format": "rannc-graph-profile", "version": 1, "rows": [1], "nodes": [)";
  for (int i = 0; i < 1'000'000; ++i) text += i == 0 ? "0" : ",0";
  write("graph.json", text + "]}");
  const Answer answer = evaluate();
  EXPECT_EQ(answer.code, kBadInput);
  EXPECT_EQ(answer.err, "rannc-plan: graph.json: $.nodes: has more than 524288 elements\n");
}

TEST_F(Program, AMissingFileIsNamed) {
  const Answer answer = run({"show", "@no.json"});
  EXPECT_EQ(answer.code, kBadInput);
  EXPECT_EQ(answer.err, "rannc-plan: no.json: cannot be read: No such file or directory\n");
}

TEST_F(Program, WrongOptionsAreOneLine) {
  const Answer answer = run({"plan", "--grph", "g.json"});
  EXPECT_EQ(answer.code, kBadInput);
  EXPECT_THAT(answer.err, HasSubstr("--graph is required"));
  EXPECT_EQ(std::ranges::count(answer.err, '\n'), 1);
  EXPECT_EQ(plan({"--global-batch", "8", "--pin", "emb"}).err,
            "rannc-plan: --pin: expected MODULE=STAGE, with a stage's number or 'last', found "
            "'emb'\n");
}

TEST_F(Program, AnOptionThatIsMisspeltIsNamedBesideTheOneThatIsMissing) {
  EXPECT_EQ(run({"plan", "--grph", "g.json"}).err,
            "rannc-plan: --graph is required; there is no option '--grph' (rannc-plan plan --help "
            "lists the options)\n");
}

TEST_F(Program, NumbersOfOptionsAreWhatTheyHaveToBe) {
  constexpr std::string_view kHelp = " (rannc-plan plan --help lists the options)\n";
  for (const std::string wrong : {"0", "-3", "1e3", "1.5", "nan", "1099511627777", ""}) {
    EXPECT_EQ(plan({"--global-batch", wrong.c_str()}).err,
              fmt::format("rannc-plan: --global-batch: expected a whole number from 1 to "
                          "1099511627776, found '{}'{}",
                          wrong, kHelp));
  }
  for (const std::string wrong : {"0", "-1", "nan", "inf", "1e999", "1s", ""}) {
    EXPECT_EQ(plan({"--global-batch", "8", "--time-limit", wrong.c_str()}).err,
              fmt::format("rannc-plan: --time-limit: expected a number of seconds above 0, found "
                          "'{}'{}",
                          wrong, kHelp));
  }
}

TEST_F(Program, HelpIsNoError) {
  const Answer answer = run({"--help"});
  EXPECT_EQ(answer.code, kDone);
  EXPECT_THAT(answer.out, HasSubstr("evaluate"));
}

}  // namespace
}  // namespace rannc::rannc_plan
