#include "partition/search/search_at_resolution.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "partition/blocks/blocks.h"
#include "partition/blocks/contract.h"
#include "partition/problem/pins.h"
#include "partition/stages/explain_shortfall.h"
#include "partition/stages/range_costs.h"

namespace rannc::partition {
namespace {

/// Beyond so many micro-batches more of them only save memory: they are searched when nothing else
/// fits.
/// tuned by: a bound on the time of planning: with 1,024 and 16,384, plans of
/// `benchmarks.planner.constants --problems 20` stay as they are.
/// without it: a batch of a million rows is searched with counts whose simulation takes minutes.
constexpr int64_t kUsualMicroBatches = 4096;

/// Shapes whose borders are refined piece by piece, and the size of a graph beyond which it is one.
/// tuned by: `planner_bench` (the time), and `ablations --without zoom`, as kZoomRounds.
/// without it: only the borders of the best plan are refined, and others may win when theirs are.
constexpr size_t kZoomedShapes = 3;
constexpr size_t kMostZoomedNodes = 20'000;

/// What a bar shows when the search over blocks is over, and borders by piece are refined.
/// tuned by: GPT 175 B on 1,024 devices spends half of its time on either, BERT 4.9 B on 32 devices
/// a fourth on the second.
/// without it: the time that is left is guessed worse.
constexpr double kToldSearch = 0.6;

using Parts = std::vector<std::vector<uint32_t>>;

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

Parts join_pieces(const Attempt::Problem& problem, int max_blocks) {
  BlockOptions options;
  options.max_blocks = max_blocks;
  // Stages are many where micro-batches are: weigh by the shares of the middle of the range.
  const std::vector<int64_t>& counts = problem.space.micro_batches;
  options.rows = static_cast<double>(
      std::max<int64_t>(1, problem.request.global_batch / counts[counts.size() / 2]));
  Parts blocks = make_blocks(problem.profile, problem.pieces, options).parts;
  split_at_pins(blocks, problem.pieces, problem.space.pin_of_node);
  return blocks;
}

}  // namespace

Attempt::Attempt(const Problem& problem, int max_blocks, Stop& stop)
    : problem_(problem),
      told_(problem.options.progress),
      blocks_(join_pieces(problem, max_blocks)),
      profile_(contract(problem.profile, blocks_, {})),
      costs_(problem.profile, blocks_),
      model_(profile_, problem.request, costs_) {
  SearchSpace& space = problem_.space;
  check_stage_count(space, blocks_.size());
  space.pins = pins_of_blocks(problem.profile, space.pin_of_node, blocks_);
  problem_.options.progress = told_.part(0, kToldSearch);
  // By default every power of two is allowed, but beyond some number more micro-batches only save
  // memory: they are tried when nothing else fits.
  SearchSpace usual = space;
  if (problem.request.micro_batches.empty() && !problem.request.force.micro_batches) {
    std::erase_if(usual.micro_batches, [](int64_t m) { return m > kUsualMicroBatches; });
  }
  const auto run = [&](const SearchSpace& where) {
    result_ =
        search(profile_, model_, problem.cluster, problem.request, where, problem.options, stop);
  };
  run(usual);
  const bool whole = usual.micro_batches.size() == space.micro_batches.size();
  if (!found() && !whole) run(space);
  exact_ = result_.exact && whole && blocks_.size() == problem.pieces.size();
  if (!found()) return;
  winner_ = to_node_plan(result_.best.winner(), blocks_);
  if (problem.options.with.zoom && blocks_.size() < problem.pieces.size()) zoom_in(stop);
}

void Attempt::zoom_in(Stop& stop) {
  const size_t arrangements = problem_.profile.nodes.size() > kMostZoomedNodes ? 1 : kZoomedShapes;
  const std::vector<Scored>& top = result_.best.top();
  const size_t most = std::min(arrangements, top.size());
  const Progress zoomed = told_.part(kToldSearch, 1);
  for (size_t k = 0; k < most; ++k) {
    NodePlan close = zoom(problem_.profile, problem_.cluster, problem_.request, problem_.space,
                          problem_.pieces, to_node_plan(top[k], blocks_), stop, result_.examined);
    if (close.scored.figures.iteration_ns < winner_.scored.figures.iteration_ns) {
      winner_ = std::move(close);
    }
    zoomed.tell(static_cast<double>(k + 1) / static_cast<double>(most));
  }
}

std::string Attempt::shortfall() const {
  std::vector<uint32_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), 0);
  const RangeCosts ranges(profile_, problem_.request, costs_, model_.moments(), order);
  return explain_shortfall(problem_.profile, blocks_, ranges, problem_.cluster, problem_.request,
                           problem_.space);
}

}  // namespace rannc::partition
