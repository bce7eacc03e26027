#include "rannc/partition/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "partition/atomic.h"
#include "partition/blocks.h"
#include "partition/contract.h"
#include "partition/notes.h"
#include "partition/search.h"
#include "partition/shortfall.h"
#include "partition/space.h"
#include "rannc/partition/evaluate.h"
#include "rannc/util/error.h"
#include "rannc/util/human.h"
#include "rannc/util/log.h"

namespace rannc::partition {
namespace {

// Defaults of max_blocks. The search takes O(blocks^2 * ranks^2), hence the upper limit; a forced
// number of stages raises it.
constexpr int kFewestBlocks = 128;
constexpr int kMostBlocks = 256;
constexpr int kBlocksPerDevice = 8;

using Parts = std::vector<std::vector<uint32_t>>;

BlockOptions block_options(const cost::Cluster& cluster, const Request& request,
                           const SearchSpace& space, int max_blocks) {
  BlockOptions options;
  // Stages are many where micro-batches are: weigh by the shares of the middle of the range.
  const int64_t m = space.micro_batches[space.micro_batches.size() / 2];
  options.rows = static_cast<double>(std::max<int64_t>(1, request.global_batch / m));
  if (max_blocks > 0) {
    options.max_blocks = max_blocks;
  } else {
    const int wanted = kBlocksPerDevice * cluster.ranks();
    options.max_blocks = std::max(std::clamp(wanted, kFewestBlocks, kMostBlocks), space.stages);
  }
  return options;
}

/// Ranks from `first_rank` on, in pipeline order.
plan::Plan to_plan(const cost::GraphProfile& profile, const Parts& blocks,
                   const Arrangement& arrangement, int first_rank) {
  plan::Plan plan;
  plan.schedule = arrangement.schedule;
  plan.micro_batches = arrangement.micro_batches;
  for (const StageChoice& choice : arrangement.stages) {
    plan::Stage& stage = plan.stages.emplace_back();
    std::vector<uint32_t> nodes;
    for (int block = choice.first; block < choice.last; ++block) {
      const std::vector<uint32_t>& part = blocks[static_cast<size_t>(block)];
      nodes.insert(nodes.end(), part.begin(), part.end());
    }
    std::ranges::sort(nodes);
    for (const uint32_t node : nodes) stage.nodes.push_back(profile.nodes[node].name);
    for (int k = 0; k < choice.replicas; ++k) stage.ranks.push_back(first_rank++);
    stage.recompute = choice.recompute;
  }
  return plan;
}

plan::Prediction rounded(const StageEvaluation& stage) {
  plan::Prediction result;
  result.rows = std::llround(stage.rows);
  result.forward_ns = std::llround(stage.forward_ns);
  result.backward_ns = std::llround(stage.backward_ns);
  result.reduce_ns = std::llround(stage.reduce_ns);
  result.param_bytes = std::llround(stage.param_bytes);
  result.gradient_bytes = std::llround(stage.gradient_bytes);
  result.optimizer_bytes = std::llround(stage.optimizer_bytes);
  result.activation_bytes = std::llround(stage.activation_bytes);
  result.buffer_bytes = std::llround(stage.buffer_bytes);
  result.workspace_bytes = std::llround(stage.workspace_bytes);
  result.peak_bytes = std::llround(stage.peak_bytes);
  return result;
}

/// Judges arrangements on the model of blocks, where a verdict costs O(blocks), not O(nodes).
class Judge {
 public:
  Judge(const cost::GraphProfile& block_profile, const cost::Cluster& cluster,
        const Request& request)
      : profile_(block_profile), cluster_(cluster), request_(request) {
    for (uint32_t block = 0; block < block_profile.nodes.size(); ++block) parts_.push_back({block});
  }

  /// Idle ranks come first in the search; last is nicer, and as good when there is one host.
  Judged judge(Arrangement arrangement) const {
    const int idle = arrangement.stages.front().first_rank;
    Judged from_zero = at(arrangement, 0);
    if (idle == 0 || cluster_.hosts == 1) return from_zero;
    Judged as_searched = at(arrangement, idle);
    return better(as_searched, from_zero) ? as_searched : from_zero;
  }

  /// By what a user sees: validity, time, then simplicity.
  static bool better(const Judged& a, const Judged& b) {
    const auto key = [](const Judged& j) {
      return std::tuple(!j.evaluation.problems.empty(), std::llround(j.evaluation.iteration_ns),
                        j.arrangement.stages.size(), j.arrangement.micro_batches);
    };
    return key(a) < key(b);
  }

 private:
  Judged at(const Arrangement& arrangement, int first_rank) const {
    Judged result{arrangement, evaluate(profile_, cluster_, request_,
                                        to_plan(profile_, parts_, arrangement, first_rank))};
    int rank = first_rank;
    for (StageChoice& stage : result.arrangement.stages) {
      stage.first_rank = rank;
      rank += stage.replicas;
    }
    return result;
  }

  const cost::GraphProfile& profile_;
  const cost::Cluster& cluster_;
  const Request& request_;
  Parts parts_;
};

/// Every arrangement under its own schedule and, because the closed form does not tell the
/// schedules apart, under the others that are allowed.
std::vector<Judged> judge_all(const Judge& judge, const std::vector<Arrangement>& arrangements,
                              const SearchSpace& space) {
  std::vector<Judged> judged;
  for (const Arrangement& arrangement : arrangements) {
    for (const plan::Schedule schedule : space.schedules) {
      Arrangement variant = arrangement;
      variant.schedule = schedule;
      const bool known = std::ranges::any_of(judged, [&](const Judged& other) {
        return other.arrangement.schedule == schedule &&
               other.arrangement.micro_batches == variant.micro_batches &&
               std::ranges::equal(other.arrangement.stages, variant.stages,
                                  [](const StageChoice& a, const StageChoice& b) {
                                    return a.first == b.first && a.last == b.last &&
                                           a.replicas == b.replicas && a.recompute == b.recompute;
                                  });
      });
      if (!known) judged.push_back(judge.judge(std::move(variant)));
    }
  }
  std::ranges::stable_sort(judged, Judge::better);
  return judged;
}

plan::Plan infeasible(std::string reason) {
  plan::Plan plan;
  plan.feasible = false;
  plan.reason = std::move(reason);
  return plan;
}

}  // namespace

plan::Plan make_plan(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                     const Request& request, const PlannerOptions& options) {
  cost::verify(profile);
  cost::verify(cluster);
  if (profile.nodes.empty()) {
    throw ConfigError(fmt::format(
        "graph profile '{}' has no nodes, so there is nothing to plan.\n  Try a model that "
        "computes something from its inputs.",
        profile.name));
  }
  const SearchSpace space = search_space(request, cluster, options);
  verify(request, cluster.ranks());

  const std::vector<Piece> pieces = atomic_pieces(profile);
  const Blocks blocks =
      make_blocks(profile, pieces, block_options(cluster, request, space, options.max_blocks));
  check_stage_count(space, blocks.parts.size());
  const cost::GraphProfile block_profile =
      contract(profile, blocks.parts,
               row_counts(request.global_batch, space.micro_batches, cluster.ranks()));
  const RangeCosts ranges(block_profile, request);

  const SearchResult found = search(ranges, cluster, request, space);
  const Judge judge(block_profile, cluster, request);
  const std::vector<Judged> judged = judge_all(judge, found.arrangements, space);
  if (judged.empty() || !judged.front().evaluation.problems.empty()) {
    return infeasible(explain_shortfall(profile, blocks.parts, ranges, cluster, request, space));
  }

  const Arrangement& winner = judged.front().arrangement;
  plan::Plan plan = to_plan(profile, blocks.parts, winner, winner.stages.front().first_rank);
  const Evaluation verdict = evaluate(profile, cluster, request, plan);
  RANNC_CHECK(verdict.problems.empty(),
              "the plan fits block by block, but not node by node: " + verdict.problems.front());
  plan.iteration_ns = std::llround(verdict.iteration_ns);
  for (size_t k = 0; k < plan.stages.size(); ++k) {
    plan.stages[k].predicted = rounded(verdict.stages[k]);
  }
  plan.notes = make_notes({.nodes = profile.nodes.size(),
                           .pieces = pieces.size(),
                           .blocks = blocks.parts.size(),
                           .depth_first = blocks.depth_first,
                           .closed_form_ns = found.closed_form_ns,
                           .states = found.states},
                          judged, options.log_candidates);
  log::info("partition",
            fmt::format("{} stages, {}, {} micro-batches, {} per iteration; the best of {} "
                        "arrangements over {} blocks",
                        plan.stages.size(), plan::name(plan.schedule), plan.micro_batches,
                        human_ns(static_cast<double>(plan.iteration_ns)), judged.size(),
                        blocks.parts.size()));
  return plan;
}

}  // namespace rannc::partition
