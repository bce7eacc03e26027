#include "partition/improve/anneal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/contract.h"
#include "partition/dice.h"
#include "partition/improve/refine.h"
#include "partition/problems.h"

namespace rannc::partition {
namespace {

using testing::cluster;
using testing::Dice;

/// 14 blocks, each reading one or two of those before it, on two hosts of four devices.
struct Branches {
  explicit Branches(uint64_t seed) {
    Dice dice(seed);
    std::vector<testing::Link> links(14);
    for (testing::Link& link : links) {
      link = {.time_ns = double(dice.draw(50, 400)), .bytes_per_row = double(dice.draw(1, 40))};
    }
    profile = testing::chain(links);
    for (int k = 2; k < 14; ++k) {
      std::vector<cost::ProfileUse>& inputs = profile.nodes[static_cast<size_t>(k)].inputs;
      inputs = {{false, static_cast<uint32_t>(dice.draw(std::max(0, k - 5), k - 1)), 0}};
      const auto other = static_cast<uint32_t>(dice.draw(std::max(0, k - 5), k - 1));
      if (other != inputs[0].node) inputs.push_back({false, other, 0});
    }
    request.global_batch = 16;
  }

  SearchSpace space() const { return search_space(request, machine, {}); }

  /// One stage for every five blocks, the first with two replicas, the last with four.
  Scored start(Assessor& assessor) const {
    Scored scored;
    scored.draft.schedule = plan::Schedule::one_f_one_b;
    scored.draft.micro_batches = 4;
    for (int k = 0; k < 14; ++k) scored.draft.stage_of.push_back(k / 5);
    scored.draft.groups = {{{0, 2}}, {{2, 2}}, {{4, 4}}};
    assessor.choose_recompute(scored.draft);
    scored.figures = assessor.assess(scored.draft);
    return scored;
  }

  cost::GraphProfile profile;
  Request request;
  cost::Cluster machine = cluster(2, 4);
};

/// Runs work(assessor) on the problem's blocks.
template <class Work>
auto with_assessor(const Branches& problem, const Work& work) {
  const auto parts = single_blocks(problem.profile.nodes.size());
  const BlockCosts costs(problem.profile, parts);
  const BlockModel model(contract(problem.profile, parts, {}), problem.request, costs);
  Assessor assessor(model, problem.machine, problem.request);
  return work(assessor);
}

TEST(Anneal, FindsWhatSingleChangesDoNot) {
  int faster = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Branches problem(seed);
    with_assessor(problem, [&](Assessor& assessor) {
      Stop stop(0, nullptr);
      Best best(1);
      const Scored stuck =
          refine(assessor, problem.space(), problem.start(assessor), {}, stop, best);
      const Scored found = anneal(assessor, problem.space(), stuck, {.trials = 4000}, stop, best);
      EXPECT_FALSE(better(stuck, found)) << "seed " << seed;
      // What it says of the draft is true of it.
      EXPECT_EQ(assessor.assess(found.draft).iteration_ns, found.figures.iteration_ns);
      faster += found.figures.iteration_ns < 0.999 * stuck.figures.iteration_ns ? 1 : 0;
    });
  }
  EXPECT_GE(faster, 5);
}

TEST(Anneal, KeepsWhatIsForced) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Branches problem(seed);
    with_assessor(problem, [&](Assessor& assessor) {
      SearchSpace space = problem.space();
      space.stages = 3;
      space.replicas = {2, 2, 4};
      space.micro_batches = {4};
      space.schedules = {plan::Schedule::one_f_one_b};
      space.pins.assign(14, SearchSpace::kFree);
      space.pins[0] = 0;
      space.pins[13] = SearchSpace::kLastStage;
      space.pins[6] = 1;
      Stop stop(0, nullptr);
      Best best(1);
      const Scored found =
          anneal(assessor, space, problem.start(assessor), {.trials = 2000}, stop, best);
      EXPECT_TRUE(respects_pins(space, found.draft));
      EXPECT_EQ(found.draft.micro_batches, 4);
      std::vector<int> replicas;
      for (const Ranks& ranks : found.draft.groups) replicas.push_back(size(ranks));
      EXPECT_EQ(replicas, space.replicas);
    });
  }
}

TEST(Anneal, EqualSeedsGiveEqualDrafts) {
  const Branches problem(3);
  const auto run = [&](uint64_t seed) {
    return with_assessor(problem, [&](Assessor& assessor) {
      Stop stop(0, nullptr);
      Best best(1);
      const AnnealOptions options{.trials = 300, .seed = seed};
      return anneal(assessor, problem.space(), problem.start(assessor), options, stop, best).draft;
    });
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace rannc::partition
