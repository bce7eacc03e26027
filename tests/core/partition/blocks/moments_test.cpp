#include "partition/blocks/moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/contract.h"
#include "partition/brute/tables.h"
#include "partition/random_problem.h"
#include "partition/stages/range_costs.h"

namespace rannc::partition {
namespace {

using testing::Problem;
using testing::random_problem;

// A stage of blocks, whose nodes may take turns in the file, holds what brute force says of its
// nodes one by one.
TEST(Moments, AreThoseOfTheNodes) {
  std::mt19937 random(5);
  const auto draw = [&](size_t most) {
    return std::uniform_int_distribution<size_t>(0, most)(random);
  };
  int taking_turns = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const Problem problem = random_problem(seed, {.version = 2});
    const size_t nodes = problem.profile.nodes.size();
    std::vector<std::vector<uint32_t>> blocks(1 + draw(nodes - 1));
    for (uint32_t node = 0; node < nodes; ++node) {
      blocks[node < blocks.size() ? node : draw(blocks.size() - 1)].push_back(node);
    }
    const size_t groups = 1 + draw(1), count = groups * (1 + draw(2));
    std::vector<int> stage_of;
    for (size_t block = 0; block < blocks.size(); ++block) {
      stage_of.push_back(static_cast<int>(draw(count - 1)));
    }
    const auto rows =
        static_cast<int64_t>(1 + draw(static_cast<size_t>(problem.request.global_batch) - 1));
    const Moments moments(problem.profile, blocks, problem.request);
    const std::vector<Moments::Stage> found =
        moments.stages(stage_of, groups, std::vector<int64_t>(count, rows));
    brute::Tables tables(problem.profile, problem.cluster, problem.request);
    std::vector<brute::Mask> masks(count, 0);
    for (size_t block = 0; block < blocks.size(); ++block) {
      for (const uint32_t node : blocks[block]) {
        masks[static_cast<size_t>(stage_of[block])] |= brute::Mask{1} << node;
      }
    }
    for (size_t s = 0; s < count; ++s) {
      if (masks[s] == 0) continue;
      brute::Mask made = 0;
      for (size_t later = s + groups; later < count; later += groups) made |= masks[later];
      const brute::Backward truth = tables.backward(masks[s], rows, made);
      const double near = 1e-9 * (truth.first + truth.later + truth.gradients) + 1e-6;
      ASSERT_NEAR(found[s].first_bytes, truth.first, near) << seed;
      ASSERT_NEAR(found[s].later_bytes, truth.later, near) << seed;
      ASSERT_NEAR(found[s].gradient_bytes, truth.gradients, near) << seed;
      ASSERT_NEAR(found[s].saved_bytes, tables.share(masks[s], rows).saved, near) << seed;
    }
    std::vector<uint32_t> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    taking_turns += !moments.follow_the_file(order);
  }
  EXPECT_GT(taking_turns, 300);
}

// What the search prunes by is never more than the truth; and what it plans by where nothing else
// fits is never less.
TEST(Moments, OfRangesAreAtLeastAndAtMostThoseOfTheStage) {
  int exact = 0, ranges = 0, exact_most = 0, most_ranges = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Problem problem = random_problem(seed, {.version = 2});
    const auto nodes = static_cast<int>(problem.profile.nodes.size());
    const auto blocks = single_blocks(problem.profile.nodes.size());
    const BlockCosts costs(problem.profile, blocks);
    const Moments moments(problem.profile, blocks, problem.request);
    std::vector<uint32_t> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    const RangeCosts line(contract(problem.profile, blocks, {}), problem.request, costs, &moments,
                          order);
    const int64_t rows = 3;
    for (int first = 0; first < nodes; ++first) {
      RangeCosts::Walk walk(line.at_rows(rows), first);
      std::optional<RangeCosts::Walk> most_walk;
      if (line.follows_file()) {
        most_walk.emplace(line.at_rows(rows), first, RangeCosts::Figure::most);
      }
      for (int last = first + 1; last <= nodes; ++last) {
        const RangeCosts::Held& held = walk.to(last);
        std::vector<int> stage_of;
        for (int node = 0; node < nodes; ++node) {
          stage_of.push_back(node < first ? 0 : node < last ? 1 : 2);
        }
        const Moments::Stage truth = moments.stages(stage_of, 3, {rows, rows, rows})[1];
        const double near = 1e-9 * (truth.first_bytes + truth.later_bytes) + 1e-6;
        ASSERT_NEAR(held.saved_bytes, truth.saved_bytes, near) << seed;
        ASSERT_NEAR(held.gradient_bytes, truth.gradient_bytes, near) << seed;
        ASSERT_LE(held.first_bytes, truth.first_bytes + near) << seed;
        ASSERT_LE(held.later_bytes, truth.later_bytes + near) << seed;
        ++ranges;
        exact += held.first_bytes > truth.first_bytes - near;
        if (!most_walk) continue;
        const RangeCosts::Held& most = most_walk->to(last);
        ASSERT_NEAR(most.saved_bytes, truth.saved_bytes, near) << seed;
        ASSERT_NEAR(most.gradient_bytes, truth.gradient_bytes, near) << seed;
        ASSERT_GE(most.first_bytes, truth.first_bytes - near) << seed;
        ASSERT_GE(most.later_bytes, truth.later_bytes - near) << seed;
        ++most_ranges;
        exact_most += most.first_bytes < truth.first_bytes + near;
      }
    }
  }
  EXPECT_GT(exact, ranges / 2);
  EXPECT_GT(exact_most, most_ranges / 2);
}

}  // namespace
}  // namespace rannc::partition
