#include "rannc/partition/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/block_model.h"
#include "partition/blocks/pieces.h"
#include "partition/evaluate/describe.h"
#include "partition/evaluate/time_parts.h"
#include "partition/find_plan.h"
#include "partition/improve/refine_by_piece.h"
#include "partition/problem/pins.h"
#include "partition/problem/progress.h"
#include "partition/problem/search_report.h"
#include "partition/problem/search_space.h"
#include "partition/score/lower_bound.h"
#include "partition/search/search.h"
#include "partition/search/search_at_resolution.h"
#include "partition/segments/choose.h"
#include "partition/segments/fold.h"
#include "partition/segments/lighten.h"
#include "rannc/partition/evaluate.h"
#include "rannc/plan/mesh.h"
#include "rannc/util/error.h"
#include "rannc/util/human.h"
#include "rannc/util/log.h"
#include "rannc/util/whole.h"

namespace rannc::partition {
namespace {

/// Default of max_blocks. The search takes O(blocks^2 * ranks^2), and zoom() puts borders between
/// pieces afterwards. A forced number of stages raises it, as do stages that memory demands, which
/// need blocks to choose borders from.
/// tuned by: `planner_bench`.
/// without it: with fewer blocks, borders are coarse where there are many stages; with more,
/// planning takes four times as long for twice as many.
constexpr int kBlocks = 128;
constexpr int kBlocksPerStage = 5;
constexpr int kMostBlocksEver = 1024;

/// Blocks of the coarse searches, which go first.
/// tuned by: `ablations large cells quality --problems 150 --inexact --without coarse`.
/// without it: plans of 15 networks of cells take 1.5 % longer on average, 23 % at most, as fewer
/// arrangements survive until they are simulated; others stay as they are. Planning takes 5 to 22 %
/// less time.
constexpr std::array kCoarseBlocks = {16, 48};

/// The two ways of computing a plan's time may differ by rounding only.
constexpr double kAgreement = 1e-9;

/// Blocks of the finest search.
int most_blocks(const SearchSpace& space) {
  // Where memory demands many stages, they need blocks to choose borders from.
  return std::max(
      {kBlocks, space.stages, std::min(kBlocksPerStage * space.fewest_stages, kMostBlocksEver)});
}

/// Resolutions of the searches, rising. Coarse ones take a fraction of the time of the finest, and
/// at times find a better plan: with fewer borders to weigh, more arrangements survive until they
/// are simulated.
std::vector<int> resolutions(int finest, size_t pieces, bool only_finest) {
  std::vector<int> result;
  for (const int blocks : kCoarseBlocks) {
    const bool coarse = blocks < finest && static_cast<size_t>(2 * blocks) <= pieces;
    if (coarse && !only_finest) result.push_back(blocks);
  }
  result.push_back(finest);
  return result;
}

Found infeasible(std::string reason) {
  Found found;
  found.plan.feasible = false;
  found.plan.reason = std::move(reason);
  return found;
}

RunnerUp to_runner_up(const Alternative& other) {
  return {.arrangement = {other.replicas, other.schedule, other.interleave},
          .iteration_ns = whole(other.parts.iteration_ns()),
          .peak_bytes = whole(other.peak_bytes)};
}

Alternative to_alternative(const std::string& kind, const Scored& scored, Assessor& assessor) {
  Alternative result;
  result.kind = kind;
  result.schedule = scored.draft.schedule;
  result.interleave = scored.draft.interleave;
  result.micro_batches = scored.draft.micro_batches;
  for (int s = 0; s < scored.draft.stages(); ++s) {
    result.replicas.push_back(scored.draft.replicas(s));
  }
  result.recompute = scored.draft.recompute;
  result.peak_bytes = scored.figures.peak_bytes;
  result.fits = scored.figures.fits;
  result.parts = assessor.parts(scored.draft);
  return result;
}

/// The best of each kind that the answer, whose draft is `winner`, is not of: the fastest first,
/// then those that do not fit.
std::vector<Alternative> alternatives(const Best& best, const Draft& winner, Assessor& assessor) {
  const std::vector<std::string> own = kinds_of(winner);
  std::vector<Alternative> result;
  for (const auto& [kind, scored] : best.kinds()) {
    if (std::ranges::find(own, kind) != own.end()) continue;
    result.push_back(to_alternative(kind, scored, assessor));
  }
  std::ranges::stable_sort(result, [](const Alternative& a, const Alternative& b) {
    return std::tuple(!a.fits, a.parts.iteration_ns()) <
           std::tuple(!b.fits, b.parts.iteration_ns());
  });
  return result;
}

}  // namespace

Arrangement arrangement_of(const plan::Plan& plan) {
  Arrangement arrangement{{}, plan.schedule, plan.interleave};
  for (const plan::Stage& stage : plan.stages) {
    arrangement.replicas.push_back(mesh_of(stage).replicas());
  }
  return arrangement;
}

plan::Plan make_plan(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                     const Request& request, const PlannerOptions& options) {
  return find_plan(profile, cluster, request, options).plan;
}

Found find_plan(const cost::GraphProfile& given, const cost::Cluster& cluster,
                const Request& request, const PlannerOptions& options) {
  return find_plan(given, cluster, request, options, Heuristics{});
}

namespace {

/// The ranks of each host follow each other.
Found find_on_line(const cost::GraphProfile& given, const cost::Cluster& cluster,
                   const Request& request, const PlannerOptions& options, const Heuristics& with) {
  if (given.nodes.empty()) {
    throw ConfigError(fmt::format(
        "graph profile '{}' has no nodes, so there is nothing to plan.\n  Try a model that "
        "computes something from its inputs.",
        given.name));
  }
  Stop stop(options.time_limit_s, options.stop);
  SearchSpace space = search_space(request, cluster, options);
  verify(request, cluster.ranks());
  const std::optional<cost::GraphProfile> changed = keep_whole(given, options.whole);
  const cost::GraphProfile& profile = changed ? *changed : given;
  space.pin_of_node = pins_of_nodes(profile, options.pins);
  space.fewest_stages = fewest_stages(profile, cluster, request);

  const std::vector<Piece> pieces = atomic_pieces(profile);
  if (const int stages = number_last_stage(space.pin_of_node, pieces); stages > 0) {
    if (space.stages > 0 && space.stages != stages) {
      return infeasible(fmt::format(
          "no plan exists: nodes that cannot be separated are pinned to stage {} and to the last, "
          "so there must be {} stage{}, but {} are forced.\n  Try another pin, or leave the number "
          "of stages free.",
          stages - 1, stages, stages == 1 ? "" : "s", space.stages));
    }
    space.stages = stages;
  }
  Attempt::Problem problem{
      profile, cluster, request,
      pieces,  space,   {.threads = options.threads, .exactly = options.exactly, .with = with}};
  const int finest = options.max_blocks > 0 ? options.max_blocks : most_blocks(space);
  // Blocks of a coarse search may be fewer than the stages that are demanded.
  const bool only_finest = !with.coarse || options.max_blocks > 0 ||
                           space.stages > kCoarseBlocks[0] / 2 || finest > kBlocks;
  std::vector<std::unique_ptr<Attempt>> attempts;
  const Attempt* best = nullptr;
  int64_t examined = 0;
  const std::vector<int> all = resolutions(finest, pieces.size(), only_finest);
  double furthest = 0;  // some parts of a search tell of the same shares
  const Progress::Listener rising = [&](double share) {
    if (share > furthest) options.progress(furthest = share);
  };
  const Progress told(options.progress ? &rising : nullptr);
  const auto sum = static_cast<double>(std::accumulate(all.begin(), all.end(), 0));
  for (double before = 0; const int max_blocks : all) {
    // A search takes about as long as it has blocks.
    problem.options.progress = told.part(before / sum, (before + max_blocks) / sum);
    before += max_blocks;
    attempts.push_back(std::make_unique<Attempt>(problem, max_blocks, stop));
    const Attempt& next = *attempts.back();
    examined += next.examined();
    if (!next.found()) continue;
    if (best == nullptr ||
        next.winner().scored.figures.iteration_ns <= best->winner().scored.figures.iteration_ns) {
      best = &next;
    }
  }
  if (best == nullptr) return infeasible(attempts.back()->shortfall());
  const NodePlan& winner = best->winner();

  plan::Plan plan = to_plan(profile, winner);
  const Evaluation verdict = evaluate(profile, cluster, request, plan);
  RANNC_CHECK(verdict.problems.empty(),
              "the search's answer is not valid: " + verdict.problems.front());
  RANNC_CHECK(std::abs(verdict.iteration_ns - winner.scored.figures.iteration_ns) <=
                  kAgreement * verdict.iteration_ns,
              fmt::format("the search says {} ns, the evaluation {} ns",
                          winner.scored.figures.iteration_ns, verdict.iteration_ns));

  SearchReport report;
  report.complete = !stop.stopped();
  report.nodes = profile.nodes.size();
  report.pieces = pieces.size();
  report.blocks = attempts.back()->blocks().size();
  report.examined = examined;
  report.bound_ns =
      attempts.back()->exact()
          ? verdict.iteration_ns
          : lower_bound_ns(profile, BlockCosts(profile, single_blocks(profile.nodes.size())),
                           cluster, request, space);
  report.parts = time_parts(profile, cluster, request, plan, verdict.iteration_ns);
  Assessor assessor(best->model(), cluster, request);
  report.alternatives = alternatives(best->best(), winner.scored.draft, assessor);
  plan = described(profile, cluster, request, std::move(plan), verdict, report);
  log::info("partition",
            fmt::format("{} stages, {}, {} micro-batches, {} per iteration, at most {:.3f} times "
                        "the least possible; {} arrangements over {} blocks examined{}",
                        plan.stages.size(), plan::name(plan.schedule), plan.micro_batches,
                        human_ns(verdict.iteration_ns), verdict.iteration_ns / report.bound_ns,
                        report.examined, report.blocks,
                        report.complete ? "" : " before the search was cut"));
  Found found{std::move(plan), {}};
  for (const Alternative& other : report.alternatives) {
    found.runners_up.push_back(to_runner_up(other));
  }
  return found;
}

/// With the hosts in the order `hosts` on the line.
Found find_in_order(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                    const std::vector<int>& hosts, const Request& request,
                    const PlannerOptions& options, const Heuristics& with) {
  const cost::Cluster line = cost::numbered_by_host(cluster, hosts);
  Found found = find_on_line(profile, line, request, options, with);
  const std::vector<int> ranks = cost::ranks_by_host(cluster, hosts);
  if (std::ranges::is_sorted(ranks) || !found.plan.feasible) return found;
  for (plan::Stage& stage : found.plan.stages) {
    for (plan::Rank& rank : stage.ranks) rank = ranks[static_cast<size_t>(rank)];
    std::ranges::sort(stage.ranks);
  }
  const Evaluation verdict = evaluate(profile, cluster, request, found.plan);
  RANNC_CHECK(verdict.problems.empty(),
              "a plan is not valid with its ranks renumbered: " + verdict.problems.front());
  found.plan = described(profile, cluster, request, std::move(found.plan), verdict);
  return found;
}

/// Nothing runs again in parts of a stage.
Found find_whole(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                 const Request& request, const PlannerOptions& options, const Heuristics& with) {
  const std::vector<std::vector<int>> orders = cost::host_orders(cluster);
  const auto count = static_cast<double>(orders.size());
  PlannerOptions each = options;
  each.time_limit_s /= count;
  std::optional<Found> best;
  for (size_t k = 0; k < orders.size(); ++k) {
    if (options.progress) {
      each.progress = [&](double share) {
        options.progress((static_cast<double>(k) + share) / count);
      };
    }
    Found found = find_in_order(profile, cluster, orders[k], request, each, with);
    const bool better = !best || (found.plan.feasible && !best->plan.feasible) ||
                        (found.plan.feasible && found.plan.iteration_ns < best->plan.iteration_ns);
    if (better) best = std::move(found);
  }
  return std::move(*best);
}

/// Numbers of micro-batches in flight for which segments are chosen.
/// tuned by: a bound on time, which was not varied: each costs a search.
/// without it: segments for one micro-batch in flight keep more than they need for many.
constexpr std::array kInFlight = {1.0, 4.0, 16.0};

/// The search sees each segment as one node. What it finds is judged as a plan of the nodes.
std::optional<Found> find_with_segments(const cost::GraphProfile& given,
                                        const cost::Cluster& cluster, const Request& request,
                                        const PlannerOptions& options, const Heuristics& with) {
  if (!options.pins.empty()) return std::nullopt;  // they name nodes
  const std::optional<cost::GraphProfile> changed = keep_whole(given, options.whole);
  const cost::GraphProfile& profile = changed ? *changed : given;
  PlannerOptions each = options;
  each.whole.clear();
  each.time_limit_s /= static_cast<double>(kInFlight.size());
  each.progress = {};
  Request searched = request;
  if (request.recompute == Recompute::segments) searched.recompute = Recompute::never;
  const size_t listed = request.force.replicas ? request.force.replicas->size() : 1;
  const size_t stages = std::max(listed, static_cast<size_t>(request.force.stages.value_or(1)));
  std::optional<Found> best;
  std::vector<std::vector<NodeRange>> tried;
  for (const double in_flight : kInFlight) {
    std::vector<NodeRange> segments = choose_segments(profile, in_flight, stages);
    if (segments.empty()) continue;
    if (std::ranges::find(tried, segments) != tried.end()) continue;
    const FoldedSegments folded = fold_segments(profile, segments);
    tried.push_back(std::move(segments));
    Found found = find_whole(folded.profile, cluster, searched, each, with);
    if (!found.plan.feasible) continue;
    plan::Plan plan = unfolded(folded, profile, found.plan);
    if (!evaluate(profile, cluster, request, plan).problems.empty()) continue;
    if (request.recompute == Recompute::automatic) {
      plan = with_fewer_segments(profile, cluster, request, std::move(plan));
    }
    const Evaluation verdict = evaluate(profile, cluster, request, plan);
    found.plan = described(profile, cluster, request, std::move(plan), verdict);
    found.runners_up.clear();
    if (!best || found.plan.iteration_ns < best->plan.iteration_ns) best = std::move(found);
  }
  return best;
}

}  // namespace

Found find_plan(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                const Request& request, const PlannerOptions& options, const Heuristics& with) {
  cost::verify(profile);
  cost::verify(cluster);
  const bool demanded = request.recompute == Recompute::segments;
  const bool allowed = demanded || request.recompute == Recompute::automatic;
  Request whole = request;
  if (demanded) whole.recompute = Recompute::never;
  std::optional<Found> found;
  if (!demanded) found = find_whole(profile, cluster, whole, options, with);
  if (allowed && !profile.nodes.empty() && !(found && found->plan.feasible)) {
    std::optional<Found> other = find_with_segments(profile, cluster, request, options, with);
    if (other) return std::move(*other);
  }
  if (!found) found = find_whole(profile, cluster, whole, options, with);
  return std::move(*found);
}

}  // namespace rannc::partition
