#include "rannc/partition/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "partition/atomic.h"
#include "partition/block_costs.h"
#include "partition/block_model.h"
#include "partition/blocks.h"
#include "partition/bound.h"
#include "partition/contract.h"
#include "partition/notes.h"
#include "partition/pins.h"
#include "partition/predictions.h"
#include "partition/report.h"
#include "partition/search.h"
#include "partition/shortfall.h"
#include "partition/space.h"
#include "partition/zoom.h"
#include "rannc/partition/evaluate.h"
#include "rannc/util/error.h"
#include "rannc/util/human.h"
#include "rannc/util/log.h"

namespace rannc::partition {
namespace {

// Default of max_blocks. The search takes O(blocks^2 * ranks^2), and zoom() puts borders between
// pieces afterwards. A forced number of stages raises it.
constexpr int kBlocks = 128;
constexpr int kBlocksPerStage = 5;
constexpr int64_t kUsualMicroBatches = 4096;
constexpr int kMostBlocksEver = 1024;
/// Shapes whose borders are refined piece by piece.
constexpr size_t kZoomed = 3;
constexpr size_t kMostZoomedNodes = 20'000;  // of one shape only beyond this
/// The two ways of computing a plan's time may differ by rounding only.
constexpr double kAgreement = 1e-9;

using Parts = std::vector<std::vector<uint32_t>>;

BlockOptions block_options(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                           const Request& request, const SearchSpace& space, int max_blocks) {
  BlockOptions options;
  // Stages are many where micro-batches are: weigh by the shares of the middle of the range.
  const int64_t m = space.micro_batches[space.micro_batches.size() / 2];
  options.rows = static_cast<double>(std::max<int64_t>(1, request.global_batch / m));
  if (max_blocks > 0) {
    options.max_blocks = max_blocks;
  } else {
    options.max_blocks = std::max(kBlocks, space.stages);
    // Where memory demands many stages, they need blocks to choose borders from.
    double bytes = 0;
    for (const cost::ProfileParam& param : profile.params) {
      bytes += param.bytes;
      if (!param.trainable) continue;
      bytes += param.bytes * request.gradient_bytes_per_param_byte;
      bytes += param.optimizer_bytes >= 0 ? param.optimizer_bytes
                                          : param.bytes * request.optimizer_bytes_per_param_byte;
    }
    const double stages = std::min(bytes / std::max(cluster.device_memory_bytes, 1.0), 1e6);
    options.max_blocks = std::max(
        options.max_blocks, std::min(static_cast<int>(kBlocksPerStage * stages), kMostBlocksEver));
  }
  return options;
}

/// Blocks whose nodes have different pins fall back into their pieces.
void split_at_pins(Parts& blocks, const std::vector<Piece>& pieces,
                   const std::vector<int>& pin_of_node) {
  if (pin_of_node.empty()) return;
  std::vector<uint32_t> piece_of(pin_of_node.size());
  for (uint32_t piece = 0; piece < pieces.size(); ++piece) {
    for (const uint32_t node : pieces[piece]) piece_of[node] = piece;
  }
  Parts result;
  for (std::vector<uint32_t>& block : blocks) {
    int lowest = INT32_MAX, highest = INT32_MIN;
    for (const uint32_t node : block) {
      if (pin_of_node[node] == SearchSpace::kFree) continue;
      lowest = std::min(lowest, pin_of_node[node]);
      highest = std::max(highest, pin_of_node[node]);
    }
    if (lowest >= highest) {
      result.push_back(std::move(block));
      continue;
    }
    std::vector<uint32_t> inside;
    for (const uint32_t node : block) inside.push_back(piece_of[node]);
    std::ranges::sort(inside);  // pieces are in a topological order
    inside.erase(std::unique(inside.begin(), inside.end()), inside.end());
    for (const uint32_t piece : inside) result.push_back(pieces[piece]);
  }
  blocks = std::move(result);
}

plan::Plan to_plan(const cost::GraphProfile& profile, const NodePlan& found) {
  plan::Plan plan;
  const Draft& draft = found.scored.draft;
  plan.schedule = draft.schedule;
  plan.interleave = draft.interleave;
  plan.micro_batches = draft.micro_batches;
  for (int s = 0; s < draft.stages(); ++s) {
    plan::Stage& stage = plan.stages.emplace_back();
    for (const uint32_t node : found.nodes[static_cast<size_t>(s)]) {
      stage.nodes.push_back(profile.nodes[node].name);
    }
    for (const Segment& segment : draft.ranks(s)) {
      for (int k = 0; k < segment.count; ++k) stage.ranks.push_back(segment.first + k);
    }
    stage.recompute = draft.recompute[static_cast<size_t>(s)];
  }
  return plan;
}

plan::Plan infeasible(std::string reason) {
  plan::Plan plan;
  plan.feasible = false;
  plan.reason = std::move(reason);
  return plan;
}

Alternative to_alternative(const std::string& kind, const Scored& scored, Assessor& assessor) {
  Alternative result;
  result.kind = kind;
  result.schedule = scored.draft.schedule;
  result.interleave = scored.draft.interleave;
  result.micro_batches = scored.draft.micro_batches;
  for (int s = 0; s < scored.draft.stages(); ++s) {
    result.replicas.push_back(size(scored.draft.ranks(s)));
  }
  result.recompute = scored.draft.recompute;
  result.peak_bytes = scored.figures.peak_bytes;
  result.fits = scored.figures.fits;
  result.parts = assessor.parts(scored.draft);
  return result;
}

/// The best of each kind that the winner is not of, the fastest first, then those that do not fit.
std::vector<Alternative> alternatives(const Best& best, Assessor& assessor) {
  std::vector<Alternative> result;
  for (const auto& [kind, scored] : best.kinds()) {
    if (scored.draft == best.winner().draft) continue;
    result.push_back(to_alternative(kind, scored, assessor));
  }
  std::ranges::stable_sort(result, [](const Alternative& a, const Alternative& b) {
    return std::tuple(!a.fits, a.parts.iteration_ns()) <
           std::tuple(!b.fits, b.parts.iteration_ns());
  });
  return result;
}

/// With one block per stage.
TimeParts parts_of(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                   const Request& request, const NodePlan& found) {
  const cost::GraphProfile stages = contract(profile, found.nodes, {});
  const BlockCosts costs(profile, found.nodes);
  const BlockModel model(stages, request, costs);
  Draft draft = found.scored.draft;
  draft.stage_of.resize(found.nodes.size());
  std::iota(draft.stage_of.begin(), draft.stage_of.end(), 0);
  return Assessor(model, cluster, request).parts(draft);
}

}  // namespace

plan::Plan make_plan(const cost::GraphProfile& given, const cost::Cluster& cluster,
                     const Request& request, const PlannerOptions& options) {
  cost::verify(given);
  cost::verify(cluster);
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

  const std::vector<Piece> pieces = atomic_pieces(profile);
  Parts blocks = make_blocks(profile, pieces,
                             block_options(profile, cluster, request, space, options.max_blocks))
                     .parts;
  split_at_pins(blocks, pieces, space.pin_of_node);
  check_stage_count(space, blocks.size());
  space.pins = pins_of_blocks(profile, space.pin_of_node, blocks);
  const cost::GraphProfile block_profile = contract(profile, blocks, {});
  const BlockCosts costs(profile, blocks);
  const BlockModel model(block_profile, request, costs);

  // By default every power of two is allowed, but beyond some number more micro-batches only save
  // memory: they are tried when nothing else fits.
  SearchSpace usual = space;
  if (request.micro_batches.empty() && !request.force.micro_batches) {
    std::erase_if(usual.micro_batches, [](int64_t m) { return m > kUsualMicroBatches; });
  }
  const SearchOptions search_options{.threads = options.threads};
  SearchResult found = search(block_profile, model, cluster, request, usual, search_options, stop);
  if (found.best.empty() && usual.micro_batches.size() < space.micro_batches.size()) {
    found = search(block_profile, model, cluster, request, space, search_options, stop);
    found.exact = false;
  }
  if (found.best.empty()) {
    const RangeCosts ranges(block_profile, request, costs);
    return infeasible(explain_shortfall(profile, blocks, ranges, cluster, request, space));
  }

  NodePlan winner = to_node_plan(found.best.winner(), blocks);
  if (blocks.size() < pieces.size()) {
    const size_t shapes = profile.nodes.size() > kMostZoomedNodes ? 1 : kZoomed;
    for (size_t k = 0; k < std::min(shapes, found.best.top().size()); ++k) {
      NodePlan close = zoom(profile, cluster, request, space, pieces,
                            to_node_plan(found.best.top()[k], blocks), stop, found.examined);
      if (close.scored.figures.iteration_ns < winner.scored.figures.iteration_ns) {
        winner = std::move(close);
      }
    }
  }

  plan::Plan plan = to_plan(profile, winner);
  const Evaluation verdict = evaluate(profile, cluster, request, plan);
  RANNC_CHECK(verdict.problems.empty(),
              "the search's answer is not valid: " + verdict.problems.front());
  RANNC_CHECK(std::abs(verdict.iteration_ns - winner.scored.figures.iteration_ns) <=
                  kAgreement * verdict.iteration_ns,
              fmt::format("the search says {} ns, the evaluation {} ns",
                          winner.scored.figures.iteration_ns, verdict.iteration_ns));
  plan = with_predictions(std::move(plan), verdict);

  Assessor assessor(model, cluster, request);
  SearchReport report;
  report.complete = !stop.stopped();
  report.nodes = profile.nodes.size();
  report.pieces = pieces.size();
  report.blocks = blocks.size();
  report.examined = found.examined;
  report.bound_ns =
      found.exact && blocks.size() == pieces.size() &&
              usual.micro_batches.size() == space.micro_batches.size()
          ? verdict.iteration_ns
          : lower_bound_ns(profile, BlockCosts(profile, single_blocks(profile.nodes.size())),
                           cluster, request, space);
  report.parts = parts_of(profile, cluster, request, winner);
  report.alternatives = alternatives(found.best, assessor);
  plan.notes = make_notes(profile, cluster, request, plan, verdict, report);
  const std::vector<std::string> of_stages = stage_notes(profile, plan, verdict);
  for (size_t k = 0; k < plan.stages.size(); ++k) plan.stages[k].notes = of_stages[k];
  log::info("partition",
            fmt::format("{} stages, {}, {} micro-batches, {} per iteration, at most {:.3f} times "
                        "the least possible; {} arrangements over {} blocks examined{}",
                        plan.stages.size(), plan::name(plan.schedule), plan.micro_batches,
                        human_ns(verdict.iteration_ns), verdict.iteration_ns / report.bound_ns,
                        report.examined, blocks.size(),
                        report.complete ? "" : " before the search was cut"));
  return plan;
}

}  // namespace rannc::partition
