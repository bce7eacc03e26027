#include "rannc/partition/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

template <class Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string reading(const std::string& keys) {
  const std::string text =
      R"({"format": "rannc-plan-request", "version": 1, "global_batch": 8)" + keys + "}";
  return error_of([&] { (void)request_from_json(text); });
}

std::string verifying(const Request& request, int ranks = 4) {
  return error_of([&] { verify(request, ranks); });
}

TEST(RequestFile, HasTheDefaultsOfThePage) {
  const Request request =
      request_from_json(R"({"format": "rannc-plan-request", "version": 1, "global_batch": 9})");
  Request expected;
  expected.global_batch = 9;
  EXPECT_EQ(request, expected);
  EXPECT_THAT(allowed_micro_batches(request), ::testing::ElementsAre(1, 2, 4, 8));
}

TEST(RequestFile, ReadsBackEveryKey) {
  Request request;
  request.global_batch = 8;
  request.gradient_bytes_per_param_byte = 0.5;
  request.optimizer_bytes_per_param_byte = 3;
  request.memory_margin = 0.1;
  request.micro_batches = {2, 6};
  request.schedules = {plan::Schedule::interleaved, plan::Schedule::gpipe};
  request.max_interleave = 3;
  request.recompute = Recompute::always;
  request.reduction_buckets = 5;
  request.force = {.stages = 6,
                   .micro_batches = 6,
                   .schedule = plan::Schedule::interleaved,
                   .interleave = 3,
                   .replicas = std::vector{1, 1, 1, 1, 1, 1}};
  EXPECT_EQ(request_from_json(to_json(request)), request);
  EXPECT_EQ(request_from_json(to_json(Request{})), Request{});
  request.master_bytes_per_param_byte = 2;
  request.shard_optimizer = true;
  EXPECT_EQ(request_from_json(to_json(request)), request);
}

TEST(RequestFile, AllowsSegmentsFromVersion3On) {
  const auto read = [](int version, const std::string& more) {
    return request_from_json("{\"format\": \"rannc-plan-request\", \"version\": " +
                             std::to_string(version) + ", \"global_batch\": 8" + more + "}")
        .recompute;
  };
  for (const int version : {1, 2}) {
    EXPECT_EQ(read(version, ""), Recompute::stage);
    EXPECT_EQ(read(version, R"(, "recompute": "auto")"), Recompute::stage);
  }
  EXPECT_EQ(read(3, ""), Recompute::automatic);
  EXPECT_EQ(read(3, R"(, "recompute": "auto")"), Recompute::automatic);
  for (const Recompute recompute : {Recompute::automatic, Recompute::never, Recompute::always,
                                    Recompute::stage, Recompute::segments}) {
    Request request;
    request.recompute = recompute;
    EXPECT_EQ(request_from_json(to_json(request)), request);
  }
}

TEST(RequestFile, NamesUnknownKeysVersionsAndValues) {
  EXPECT_EQ(reading(R"(, "recomputed": "auto")"),
            "plan request: $: unknown key 'recomputed'; did you mean 'recompute'?");
  EXPECT_THAT(reading(R"(, "shard_optimizer": true)"),
              ::testing::HasSubstr("unknown key 'shard_optimizer'"));
  EXPECT_EQ(reading(R"(, "force": {"stage": 2})"),
            "plan request: $.force: unknown key 'stage'; did you mean 'stages'?");
  EXPECT_EQ(
      reading(R"(, "schedules": ["pipe"])"),
      "plan request: $.schedules[0]: expected 'gpipe', '1f1b' or 'interleaved', found 'pipe'");
  EXPECT_EQ(reading(R"(, "recompute": "maybe")"),
            "plan request: $.recompute: expected 'auto', 'never', 'always', 'stage' or "
            "'segments', found 'maybe'");
  EXPECT_EQ(reading(R"(, "micro_batches": [0])"),
            "plan request: $.micro_batches[0]: expected an integer of at least 1, found 0");
  EXPECT_EQ(reading(R"(, "memory_margin": -0.5)"),
            "plan request: $.memory_margin: expected a number of at least 0, found -0.5");
}

TEST(RequestFile, RefusesStagesThatNoClusterCanTake) {
  EXPECT_EQ(
      reading(R"(, "schedules": ["interleaved"], "max_interleave": 4, "force": {"stages": 1})"),
      "plan request: $.force.stages: 1 stages cannot be placed on any ranks by the allowed "
      "schedules (interleaved)");
}

TEST(RequestVerify, RejectsListsThatCannotBe) {
  Request request;
  request.micro_batches = {1, 1};
  EXPECT_EQ(verifying(request), "plan request: $.micro_batches: 1 occurs twice");
  request.micro_batches.clear();
  request.schedules = {plan::Schedule::interleaved};
  EXPECT_EQ(verifying(request),
            "plan request: $.max_interleave: 'interleaved' is among the schedules, which needs at "
            "least 2, found 1");
  request.schedules = {};
  EXPECT_EQ(verifying(request), "plan request: $.schedules: must name at least one schedule");
}

TEST(RequestVerify, RejectsForcedValuesThatTheRestForbids) {
  Request request;
  request.global_batch = 8;
  request.force.micro_batches = 3;
  EXPECT_EQ(
      verifying(request),
      "plan request: $.force.micro_batches: 3 is not among 'micro_batches' (1, 2, 4, 8); add it "
      "there");
  request.force = {.schedule = plan::Schedule::interleaved};
  EXPECT_EQ(verifying(request),
            "plan request: $.force.schedule: 'interleaved' is not among 'schedules'");
  request.force = {.interleave = 2};
  EXPECT_EQ(verifying(request),
            "plan request: $.force.interleave: must be from 1 to max_interleave = 1, found 2");
  request.force = {.stages = 5};
  EXPECT_EQ(verifying(request),
            "plan request: $.force.stages: 5 stages cannot be placed on 4 ranks by the allowed "
            "schedules (gpipe, 1f1b)");
  request.force = {.stages = 2, .replicas = std::vector{1, 1, 2}};
  EXPECT_EQ(verifying(request),
            "plan request: $.force.replicas: names 3 stages, but force.stages = 2");
  request.force = {.replicas = std::vector{2, 3}};
  EXPECT_EQ(verifying(request),
            "plan request: $.force.replicas: [2, 3] need 5 ranks, but there are 4; take fewer, or "
            "start 5 ranks");
  request.force = {.micro_batches = 4, .replicas = std::vector{1, 3}};
  EXPECT_EQ(verifying(request),
            "plan request: $.force.replicas: 3 replicas of 4 micro-batches need 12 rows, but "
            "global_batch = 8");
  request.force = {.micro_batches = 2, .replicas = std::vector{1, 3}};
  EXPECT_EQ(verifying(request), "no error");
}

TEST(RequestVerify, TakesMoreStagesThanRanksOnlyInterleaved) {
  Request request;
  request.global_batch = 8;
  request.schedules = {plan::Schedule::gpipe, plan::Schedule::interleaved};
  request.max_interleave = 2;
  // 8 = 2 * 4 groups on 4 ranks; 7 is no multiple of 2.
  request.force.stages = 8;
  EXPECT_EQ(verifying(request), "no error");
  request.force.stages = 7;
  EXPECT_NE(verifying(request), "no error");
  // Stages 0 and 2 are one group, so they have as many replicas.
  request.force = {.replicas = std::vector{1, 3, 1, 3}};
  EXPECT_EQ(verifying(request), "no error");
  request.force = {.replicas = std::vector{1, 3, 3, 1}};
  EXPECT_NE(verifying(request), "no error");
}

}  // namespace
}  // namespace rannc::partition
