#include "rannc/util/json.h"

#include <gtest/gtest.h>

#include "rannc/util/error.h"

namespace rannc::json {
namespace {

std::string error_of(std::string_view text, const Limits& limits = {}) {
  try {
    Document(text, "test file", limits);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

template <class Read>
std::string reading_error(std::string_view text, Read read) {
  const Document document(text, "test file");
  try {
    read(document.root());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonDocument, KeepsEveryKindOfValueInFileOrder) {
  const Document document(R"({"b": [1, 2.5, true, null, "x\ny"], "a": {"k": -3}})", "test file");
  EXPECT_EQ(document.root().dump(), R"({"b":[1,2.5,true,null,"x\ny"],"a":{"k":-3}})");
  EXPECT_EQ(document.root().at("b").elements()[4].path(), "$.b[4]");
  EXPECT_EQ(document.root().at("a").at("k").path(), "$.a.k");
}

TEST(JsonDocument, NamesLineAndColumnOfASyntaxError) {
  // The comma is missing after 1: the string that starts in column 3 of line 2 cannot follow.
  EXPECT_EQ(error_of("{\"a\": 1\n  \"b\": 2}").substr(0, 44),
            "test file: line 2, column 5: syntax error wh");
}

TEST(JsonDocument, RejectsANumberThatIsNotFinite) {
  // The number ends in column 6.
  EXPECT_EQ(error_of("[1,\n 1e999]"),
            "test file: line 2, column 6: number overflow parsing '1e999'");
}

TEST(JsonDocument, RejectsAKeyThatOccursTwice) {
  EXPECT_EQ(error_of(R"({"nodes": [{}, {"op": 1, "op": 2}]})"),
            "test file: $.nodes[1]: key 'op' occurs twice");
}

TEST(JsonDocument, RejectsAKeyThatOccursTwiceAmongMany) {
  std::string text = "{";
  for (int i = 0; i < 100; ++i) text += "\"k" + std::to_string(i) + "\": 1, ";
  EXPECT_EQ(error_of(text + "\"k100\": 1}"), "no error");
  EXPECT_EQ(error_of(text + "\"k3\": 1}"), "test file: $: key 'k3' occurs twice");
}

TEST(JsonDocument, RejectsInvalidUtf8AndTextAfterTheEnd) {
  EXPECT_NE(error_of("\"\xff\""), "no error");
  EXPECT_NE(error_of("{} {}"), "no error");
  EXPECT_NE(error_of(""), "no error");
}

TEST(JsonDocument, StopsAtItsLimits) {
  EXPECT_EQ(error_of("[[[1]]]", {.depth = 2}), "test file: $[0]: nested deeper than 2 levels");
  EXPECT_EQ(error_of(R"(["abcd"])", {.string_bytes = 3}),
            "test file: line 1, column 2: a string of more than 3 bytes");
  EXPECT_EQ(error_of("[\n1,\n12345]", {.number_bytes = 4}),
            "test file: line 3, column 1: a number of more than 4 bytes");
  EXPECT_EQ(error_of(R"({"a": [1, 2, 3]})", {.elements = 2}),
            "test file: $.a: has more than 2 elements");
  EXPECT_EQ(error_of("[1, 2, 3]", {.values = 3}), "test file: $: more than 3 values");
}

TEST(JsonDocument, QuotesTheBeginningOfALongTokenOnly) {
  EXPECT_LT(error_of("[" + std::string(900, '7') + "x]").size(), 400);
}

TEST(JsonPlace, RejectsNumbersWhoseSumsWouldNotBeFinite) {
  EXPECT_EQ(reading_error("[1e300]", [](Place root) { (void)root.elements()[0].number(); }),
            "test file: $[0]: expected a number of at most 1e+100, found 1e+300");
}

TEST(JsonPlace, NamesAnUnknownKeyAndTheClosest) {
  EXPECT_EQ(reading_error(R"({"a": {"forwrd_ns": 1}})",
                          [](Place root) {
                            root.at("a").allow_only({"op", "forward_ns"});
                          }),
            "test file: $.a: unknown key 'forwrd_ns'; did you mean 'forward_ns'?");
}

TEST(JsonPlace, RejectsNegativeNumbersWhereTheyCannotBe) {
  EXPECT_EQ(reading_error("[-1]", [](Place root) { (void)root.elements()[0].number(); }),
            "test file: $[0]: expected a number of at least 0, found -1");
  EXPECT_EQ(reading_error("[-1]", [](Place root) { (void)root.elements()[0].integer(0, 9); }),
            "test file: $[0]: expected an integer of at least 0, found -1");
}

TEST(JsonPlace, TakesWholeFloatsAsIntegersAndNoOthers) {
  const Document document("[4.0]", "test file");
  EXPECT_EQ(document.root().elements()[0].integer(0, 9), 4);
  EXPECT_EQ(reading_error("[4.5]", [](Place root) { (void)root.elements()[0].integer(0, 9); }),
            "test file: $[0]: expected an integer, found 4.5");
}

TEST(JsonPlace, ChecksFormatAndVersionFirst) {
  EXPECT_EQ(reading_error(R"({"format": "other", "version": 1})",
                          [](Place root) { root.expect_format("mine", 1); }),
            "test file: $.format: expected 'mine', found 'other'");
  EXPECT_EQ(reading_error(R"({"format": "mine", "version": 2})",
                          [](Place root) { root.expect_format("mine", 1); }),
            "test file: $.version: version 2 of 'mine' is unknown; this program reads version 1");
}

TEST(NumberText, ReadsBackAsTheSameDouble) {
  EXPECT_EQ(number_text(4000), "4000");
  EXPECT_EQ(number_text(0.1), "0.1");
  const double third = 1.0 / 3;
  EXPECT_EQ(Document(number_text(third), "t").root().number(), third);
}

}  // namespace
}  // namespace rannc::json
