#include <gtest/gtest.h>

#include <numeric>

#include "partition/problems.h"
#include "partition/segments/choose.h"
#include "partition/segments/fold.h"
#include "partition/segments/lighten.h"
#include "rannc/partition/evaluate.h"
#include "rannc/partition/planner.h"

namespace rannc::partition {
namespace {

using testing::chain;
using testing::cluster;
using testing::Link;

/// Layers of four nodes that save 100 bytes a row each; only between layers little is passed on.
cost::GraphProfile layers(int count) {
  std::vector<Link> links;
  for (int layer = 0; layer < count; ++layer) {
    for (const double bytes : {400.0, 400.0, 400.0, 100.0}) {
      links.push_back({.bytes_per_row = bytes, .param_bytes = 10, .saved_per_row = 100});
    }
  }
  return chain(links);
}

Request batch(int64_t rows, Recompute recompute = Recompute::automatic) {
  Request request;
  request.global_batch = rows;
  request.micro_batches = {1};
  request.recompute = recompute;
  return request;
}

double peak_bytes(const cost::GraphProfile& profile, const Request& request,
                  const plan::Plan& plan) {
  return evaluate(profile, cluster(1, 1), request, plan).stages.at(0).peak_bytes;
}

TEST(ChooseSegments, CutsWhereLittleIsPassedOn) {
  const std::vector<NodeRange> segments = choose_segments(layers(9), 1);
  ASSERT_GT(segments.size(), 1u);
  EXPECT_EQ(segments.front().begin, 0u);
  EXPECT_EQ(segments.back().end, 36u);
  for (const NodeRange& segment : segments) EXPECT_EQ(segment.end % 4, 0u);
  // With k segments 100 (k - 1) are kept at borders and 400 ceil(9 / k) in the largest: 400 + 800
  // with five is the least, and with nine no less.
  EXPECT_EQ(segments.size(), 5u);
}

TEST(ChooseSegments, KeepsGroupsWhole) {
  cost::GraphProfile profile = layers(4);
  for (uint32_t node = 2; node < 14; ++node) profile.nodes[node].group = "g";
  for (const NodeRange& segment : choose_segments(profile, 1)) {
    EXPECT_TRUE(segment.end <= 2 || segment.end >= 14) << segment.end;
  }
}

TEST(FoldSegments, TheFoldedPlanCostsWhatThePlanOfTheNodesDoes) {
  const cost::GraphProfile profile = layers(4);
  const std::vector<NodeRange> segments{{0, 4}, {4, 8}, {8, 12}};
  const FoldedSegments folded = fold_segments(profile, segments);
  EXPECT_EQ(folded.profile.nodes.size(), 7u);
  plan::Plan plan;
  plan.micro_batches = 1;
  plan.stages.resize(1);
  plan.stages[0].ranks = {0};
  for (const cost::ProfileNode& node : folded.profile.nodes) {
    plan.stages[0].nodes.push_back(node.name);
  }
  const Request request = batch(8);
  const plan::Plan of_nodes = unfolded(folded, profile, plan);
  EXPECT_EQ(of_nodes.stages[0].nodes.size(), 16u);
  ASSERT_EQ(of_nodes.stages[0].segments.size(), 3u);
  EXPECT_EQ(of_nodes.stages[0].segments[1], (std::vector<std::string>{"n4", "n5", "n6", "n7"}));
  const Evaluation before = evaluate(folded.profile, cluster(1, 1), request, plan);
  const Evaluation after = evaluate(profile, cluster(1, 1), request, of_nodes);
  EXPECT_TRUE(after.problems.empty());
  EXPECT_DOUBLE_EQ(before.iteration_ns, after.iteration_ns);
  EXPECT_DOUBLE_EQ(before.stages[0].peak_bytes, after.stages[0].peak_bytes);
}

/// One rank that holds `share` of what the plan without recompute needs.
plan::Plan planned(const cost::GraphProfile& profile, double share, Request request) {
  request.recompute = Recompute::never;
  const double all = peak_bytes(profile, request, make_plan(profile, cluster(1, 1), request));
  request.recompute = Recompute::automatic;
  return make_plan(profile, cluster(1, 1, share * all), request);
}

TEST(Planner, RunsSegmentsAgainWhereNothingElseFits) {
  const cost::GraphProfile profile = layers(24);
  const Request request = batch(64);
  const plan::Plan all = planned(profile, 1, request);
  ASSERT_TRUE(all.feasible) << all.reason;
  EXPECT_FALSE(all.stages[0].runs_again());  // as ever where it fits

  const plan::Plan third = planned(profile, 0.33, request);
  ASSERT_TRUE(third.feasible) << third.reason;
  ASSERT_EQ(third.stages.size(), 1u);
  EXPECT_FALSE(third.stages[0].segments.empty());
  EXPECT_GT(third.iteration_ns, all.iteration_ns);

  // With more room fewer segments run again, which takes less time.
  const plan::Plan most = planned(profile, 0.8, request);
  EXPECT_FALSE(most.stages[0].segments.empty());
  EXPECT_LT(most.iteration_ns, third.iteration_ns);

  const plan::Plan none = planned(profile, 0.05, request);
  EXPECT_FALSE(none.feasible);
}

TEST(Planner, HasASegmentForEachStageThatIsForced) {
  const cost::GraphProfile profile = layers(1);
  Request request = batch(8);
  request.force.stages = 2;
  EXPECT_EQ(choose_segments(profile, 1).size(), 1u);
  EXPECT_GE(choose_segments(profile, 1, 2).size(), 2u);
  EXPECT_TRUE(choose_segments(profile, 1, profile.nodes.size() + 1).empty());
  const plan::Plan none = make_plan(profile, cluster(1, 2, 10), request);
  EXPECT_FALSE(none.feasible);  // and no error that there are too few blocks
}

TEST(Planner, LeavesSegmentsOutOrTakesThemAsTheRequestSays) {
  const cost::GraphProfile profile = layers(8);
  const plan::Plan demanded = make_plan(profile, cluster(1, 1), batch(8, Recompute::segments));
  ASSERT_TRUE(demanded.feasible) << demanded.reason;
  EXPECT_FALSE(demanded.stages[0].segments.empty());
  EXPECT_FALSE(demanded.stages[0].recompute);
  const double all = peak_bytes(profile, batch(8), make_plan(profile, cluster(1, 1), batch(8)));
  const plan::Plan whole = make_plan(profile, cluster(1, 1, all / 2), batch(8, Recompute::stage));
  EXPECT_FALSE(whole.feasible);
}

}  // namespace
}  // namespace rannc::partition
