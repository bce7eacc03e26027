#include "partition/search/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "partition/blocks/down_sets.h"
#include "partition/blocks/linear_order.h"
#include "partition/blocks/movable_parts.h"
#include "partition/improve/anneal.h"
#include "partition/improve/refine.h"
#include "partition/score/lay_out.h"
#include "partition/search/enumerate.h"
#include "partition/search/grids.h"
#include "partition/search/interleaved.h"
#include "partition/search/line.h"

namespace rannc::partition {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// States per cell of the closed form's search. It finds what refining makes as good as what the
/// full search would find, which is for when nothing else fits.
/// tuned by: `planner_bench`.
/// without it: thousands of ranks take minutes.
constexpr int kBeam = 2;

/// States per cell of the full search when there are more than `kExactBlocks` blocks: fronts of
/// many states make the exact search take minutes, for plans that refining finds, too.
/// tuned by: `planner_bench`.
/// without it: a model of 128 blocks on many ranks takes minutes to say that it does not fit.
constexpr int kWideBeam = 8;
constexpr size_t kExactBlocks = 48;

/// Searches that run side by side before what they found cuts the next ones; the same with any
/// number of threads, so that the plan is, too.
/// tuned by: `benchmarks.planner.constants --problems 20`, on one thread: with 1 and 16 plans stay
/// as they are; with 16 planning takes a fourth longer, with 1 about as long. without it: with
/// fewer, threads have nothing to do; with more, searches are cut later.
constexpr size_t kWave = 4;

/// Linear orders of the blocks that are searched: all that linear_orders() gives.
/// tuned by: `ablations large cells --problems 150 --inexact --without other_orders`.
/// without it: plans take 0.2 and 0.5 % longer on average, 6.4 % at most; some become as much
/// shorter. A branch that the given order runs in turns with another cannot be a stage.
constexpr size_t kMostLines = 3;

/// With more blocks, only one order is searched, narrowly, and two arrangements are refined. Only a
/// user who asks for so many has them, or memory that demands as many stages. tuned by:
/// `planner_bench`, with max_blocks above it. without it: such a search takes minutes.
constexpr size_t kManyBlocks = 400;

/// The search over all down-sets: with so many at most, and so much work, which is pairs of them,
/// one inside the other, times the square of the positions of ranks. More where lines find no plan.
/// tuned by: `branches_quality large --problems 51`, together with the moves of parts: plans are
/// 4.7 % faster on average, up to 25 %. Alone, by `ablations large --problems 150 --inexact`: 0.7 %
/// on average, 9.7 % at most.
/// without it: a model that fits by one convex cut only, which no line has, has no plan.
constexpr size_t kMostBorders = 1000;
constexpr double kMostBorderWork = 2e6, kMostBorderWorkEver = 5e7;

/// Shapes (schedule, chunks, micro-batches, groups) of which the best draft is remembered, and of
/// which it is refined.
/// tuned by: `benchmarks.planner.constants --problems 40`: plans stay as they are with 8 and 32 of
/// the first, and with 4 of the second. With 16 of it one of 84 is 5 % shorter, and planning takes
/// 1.3 times as long; with 1, one of 45 is 1.9 % longer.
/// without it: the best plan is often the refined draft of an arrangement that was not the best
/// before.
constexpr size_t kKeptShapes = 16;
constexpr size_t kRefinedShapes = 8;

/// Work of refining one arrangement: blocks and actions looked at. So many drafts are assessed,
/// between the least and the most. tuned by: `planner_bench`. without it: refining an arrangement
/// of thousands of micro-batches takes minutes.
constexpr int64_t kRefineWork = 6'000'000;
constexpr int64_t kLeastRefinements = 30, kMostRefinements = 4000;

/// Arrangements that are annealed where the graph branches, and the work of each: blocks and
/// actions looked at, as so many drafts.
/// tuned by: `ablations large cells --problems 200 --without anneal`: 8,000 drafts gain hardly
/// more, and with 1,500 two thirds of the gain are lost.
/// without it: plans of these problems take 1.4 and 1.0 % longer on average, and up to 10 %; the
/// search takes 10 to 15 % less time, and with the exact search 3 %.
constexpr size_t kAnnealed = 2;
constexpr int64_t kAnnealWork = 6'000'000, kMostAnnealed = 3000;

/// The micro-batch counts that are searched first, as a place between the fewest and the most: they
/// are likely to be good, and cut the others.
/// tuned by: `benchmarks.planner.constants --problems 20`: from the fewest or from the most on,
/// planning takes a fourth longer.
/// without it: the same plans, later.
constexpr double kLikelyCount = 0.6;

/// What a bar shows when the narrow closed forms are over, all of them, refining, and the exact
/// search; annealing is the rest.
/// tuned by: GPT 175 B on 1,024 devices spends 4 % of its time on the first and nearly all of the
/// rest on refining; BERT 4.9 B on 32 devices 70 and 25 %.
/// without it: the time that is left is guessed worse.
constexpr double kToldNarrow = 0.3, kToldClosed = 0.4, kToldRefined = 0.8, kToldExact = 0.95;

struct Task {
  const Line* line;
  Grid grid;
  int64_t micro_batches;
};

/// Runs work(0), ..., work(count - 1), on several threads when asked to.
template <class Work>
void for_each(size_t count, int threads, const Progress& progress, const Work& work) {
  const auto tell = [&](size_t done) {
    progress.tell(static_cast<double>(done) / static_cast<double>(count));
  };
  if (threads <= 1 || count <= 1) {
    for (size_t k = 0; k < count; ++k) {
      work(k);
      tell(k + 1);
    }
    return;
  }
  std::atomic<size_t> next = 0, done = 0;
  std::vector<std::jthread> pool;
  for (int t = 0; t < std::min<int>(threads, static_cast<int>(count)); ++t) {
    pool.emplace_back([&] {
      for (size_t k = next++; k < count; k = next++) {
        work(k);
        ++done;
        done.notify_one();
      }
    });
  }
  for (size_t seen = 0; seen < count; tell(seen)) {
    done.wait(seen);
    seen = done;
  }
}

class Searcher {
 public:
  Searcher(const cost::GraphProfile& blocks, const BlockModel& model, const cost::Cluster& cluster,
           const Request& request, const SearchSpace& space, const SearchOptions& options,
           Stop& stop)
      : blocks_(blocks),
        model_(model),
        cluster_(cluster),
        request_(request),
        space_(space),
        options_(options),
        stop_(stop),
        assessor_(model, cluster, request) {
    const int64_t m = space.micro_batches[space.micro_batches.size() / 2];
    const auto rows = static_cast<double>(std::max<int64_t>(1, request.global_batch / m));
    std::vector<std::vector<uint32_t>> orders = linear_orders(blocks, rows);
    const bool one_line = model.blocks() > kManyBlocks || !options.with.other_orders;
    const size_t lines = one_line ? 1 : kMostLines;
    if (orders.size() > lines) orders.resize(lines);
    for (std::vector<uint32_t>& order : orders) {
      lines_.push_back(std::make_unique<Line>(std::move(order), blocks, model, request));
    }
    for (const plan::Schedule schedule : space.schedules) {
      if (schedule != plan::Schedule::interleaved) plain_.push_back(schedule);
    }
    std::ranges::stable_sort(plain_, [](plan::Schedule a, plan::Schedule b) {
      return a == plan::Schedule::one_f_one_b && b != plan::Schedule::one_f_one_b;
    });
    grids_ = grids(cluster, space);
    if (!options.with.other_layouts)
      std::erase_if(grids_, [](Grid grid) { return grid.columns > 1; });
  }

  SearchResult run() {
    for (const Grid grid : grids_) {
      for (const std::unique_ptr<Line>& line : lines_) {
        for (const int64_t m : space_.micro_batches) tasks_.push_back({line.get(), grid, m});
      }
    }
    if (large()) thin_out();
    // Counts from the middle of the range are likely to be good, and cut the others.
    const auto middle = static_cast<double>(space_.micro_batches.size() - 1) * kLikelyCount;
    std::ranges::stable_sort(tasks_, {}, [&](const Task& task) {
      const auto place = std::ranges::find(space_.micro_batches, task.micro_batches);
      return std::abs(static_cast<double>(place - space_.micro_batches.begin()) - middle);
    });
    if (!plain_.empty()) {
      single_stages();
      closed_forms(/*narrow=*/true, tells(0, kToldNarrow));
      // What ranges hold at least may be too little for the plans that were found by it, all of
      // them or the fastest.
      if (model_.moments() != nullptr && (result_.best.empty() || unfit_ns_ < best_ns())) {
        const double before = result_.best.empty() ? kInfinity : closed_form_ns_;
        closed_form_ns_ = best_ns();
        figure_ = StageCosts::Figure::most;
        closed_forms(/*narrow=*/true, tells(kToldNarrow, kToldClosed));
        figure_ = StageCosts::Figure::least;
        closed_form_ns_ = std::min(before, closed_form_ns_);
      }
      if (result_.best.empty() && !large()) {
        closed_form_ns_ = kInfinity;
        closed_forms(/*narrow=*/false, tells(kToldNarrow, kToldClosed));
      }
      if (options_.with.down_sets) over_down_sets();
    }
    if (space_.interleaves()) {
      for_each(grids_.size(), /*threads=*/1, tells(kToldNarrow, kToldClosed), [&](size_t k) {
        search_chunks(assessor_, lines_.front()->ranges, lines_.front()->order, space_, grids_[k],
                      stop_, result_.best);
      });
    }
    if (options_.with.refine) refine_shapes();
    if (options_.exactly && options_.with.exact) {
      result_.exact =
          search_exactly(assessor_, space_, stop_, tells(kToldRefined, kToldExact), result_.best);
    }
    if (!result_.exact && options_.with.anneal && branches(model_)) anneal_best();
    result_.examined += assessor_.examined();
    return std::move(result_);
  }

 private:
  Progress tells(double from, double to) const { return options_.progress.part(from, to); }

  /// Whether the exact search of the closed form would take minutes.
  bool large() const { return model_.blocks() > kManyBlocks; }

  /// The same tasks between all down-sets instead of those of a line, which reaches any convex cut:
  /// narrowly, and in full where there is no plan yet. In a chain, lines have them all.
  void over_down_sets() {
    std::vector<BlockSet> sets = down_sets(model_, kMostBorders);
    if (sets.size() <= model_.blocks() + 1) return;
    const double most = result_.best.empty() ? kMostBorderWorkEver : kMostBorderWork;
    if (border_work(sets) > most) return;
    down_sets_ = std::make_unique<Line>(std::move(sets), blocks_, model_, request_);
    std::erase_if(tasks_, [&](const Task& task) { return task.line != lines_.front().get(); });
    for (Task& task : tasks_) task.line = down_sets_.get();
    if (result_.best.empty()) closed_form_ns_ = kInfinity;  // of what does not fit
    const Progress told = tells(kToldNarrow, kToldClosed);
    closed_forms(/*narrow=*/true, told);
    if (result_.best.empty()) closed_forms(/*narrow=*/false, told);
  }

  double border_work(const std::vector<BlockSet>& sets) const {
    double positions = 1;
    for (const Grid grid : grids_) {
      positions = std::max(positions, static_cast<double>(cluster_.ranks()) / grid.step());
    }
    double pairs = 0;
    for (size_t a = 0; a < sets.size(); ++a) {
      for (size_t b = a + 1; b < sets.size(); ++b) pairs += (sets[a] & ~sets[b]).none() ? 1 : 0;
    }
    return pairs * positions * positions;
  }

  /// A few layouts and every other count; refining tries the neighbours.
  void thin_out() {
    std::vector<int> columns;
    std::erase_if(tasks_, [&](const Task& task) {
      if (std::ranges::find(columns, task.grid.columns) == columns.end()) {
        columns.push_back(task.grid.columns);
      }
      const auto layout = std::ranges::find(columns, task.grid.columns) - columns.begin();
      const auto count = std::ranges::find(space_.micro_batches, task.micro_batches) -
                         space_.micro_batches.begin();
      return layout > 3 || count % 2 == 1;
    });
  }

  /// Whether it fits.
  bool add(Draft draft, int columns) {
    if (!respects_pins(space_, draft)) return false;
    assessor_.choose_recompute(draft);
    Scored scored{std::move(draft), columns, {}};
    scored.figures = assessor_.assess(scored.draft);
    result_.best.add(scored);
    return scored.figures.fits;
  }

  /// The whole model on all ranks, and on one.
  void single_stages() {
    if (space_.stages > 1) return;
    std::vector<int> counts{1};
    if (!space_.one_replica) counts.push_back(cluster_.ranks());
    if (!space_.replicas.empty()) counts = {space_.replicas.front()};
    for (const int64_t m : space_.micro_batches) {
      for (int count : counts) {
        if (space_.replicas.empty()) {
          count = static_cast<int>(std::min<int64_t>(count, request_.global_batch / m));
        }
        if (count < 1 || count * m > request_.global_batch) continue;
        for (const plan::Schedule schedule : plain_) {
          Draft draft;
          draft.schedule = schedule;
          draft.micro_batches = m;
          draft.stage_of.assign(model_.blocks(), 0);
          draft.groups = lay_out(cluster_, {count}, 1, 0);
          add(std::move(draft), 1);
        }
      }
    }
  }

  struct Found {
    std::vector<std::pair<plan::Schedule, Candidate>> candidates;
  };

  StageSearch restricted(const Task& task, plan::Schedule schedule, bool narrow) const {
    StageSearch search;
    search.schedule = schedule;
    search.one_replica = space_.one_replica;
    if (space_.stages > 0) search.stages = space_.stages;
    if (!space_.replicas.empty()) search.replicas = space_.replicas;
    const bool small = task.line->ranges.end() <= static_cast<int>(kExactBlocks);
    search.beam = narrow ? kBeam : small ? 0 : kWideBeam;
    search.each_stage_count = !narrow || task.line == down_sets_.get();
    search.cutoff_ns = closed_form_ns_ * (1 + kMargin);
    if (!space_.pins.empty()) {
      for (const uint32_t block : task.line->order) search.pins.push_back(space_.pins[block]);
    }
    return search;
  }

  Found solve(const Task& task, bool narrow) const {
    Found found;
    if (task.micro_batches * task.grid.step() > request_.global_batch) return found;
    if (figure_ == StageCosts::Figure::most && !task.line->ranges.follows_file()) return found;
    const StageCosts costs(task.line->ranges, cluster_, request_, task.micro_batches, task.grid,
                           figure_);
    if (costs.max_replicas() < 1) return found;
    const FrontBounds bounds(costs);
    const FrontBounds::Bound& all = bounds.at(costs.blocks(), costs.ranks());
    const double least = all.sum_ns + static_cast<double>(task.micro_batches - 1) * all.period_ns;
    if (least > closed_form_ns_ * (1 + kMargin)) return found;
    for (const plan::Schedule schedule : plain_) {
      StageAnswer answer = solve_stages(costs, bounds, restricted(task, schedule, narrow));
      for (Candidate& candidate : answer.candidates) {
        found.candidates.emplace_back(schedule, std::move(candidate));
      }
      // The other schedules have the same optima, or, for a large problem, hardly better ones: 1f1b
      // holds fewest micro-batches, and every candidate is tried under each schedule.
      if (!answer.memory_mattered || large()) break;
    }
    return found;
  }

  /// In waves, so that what one wave finds cuts the next, on any number of threads alike.
  void closed_forms(bool narrow, const Progress& told) {
    for (size_t begin = 0; begin < tasks_.size(); begin += kWave) {
      const size_t count = std::min(kWave, tasks_.size() - begin);
      std::vector<Found> found(count);
      const auto share = [&](size_t tasks) {
        return static_cast<double>(tasks) / static_cast<double>(tasks_.size());
      };
      const Progress wave = told.part(share(begin), share(begin + count));
      for_each(count, options_.threads, wave, [&](size_t k) {
        if (!stop_.now()) found[k] = solve(tasks_[begin + k], narrow);
      });
      for (size_t k = 0; k < count; ++k) keep(tasks_[begin + k], found[k]);
    }
  }

  void keep(const Task& task, const Found& found) {
    for (const auto& [of, candidate] : found.candidates) {
      closed_form_ns_ = std::min(closed_form_ns_, candidate.closed_form_ns);
      bool fits = false;
      for (const plan::Schedule schedule : plain_) {
        fits |= add(to_draft(candidate.stages, *task.line, cluster_, task.grid, schedule,
                             task.micro_batches),
                    task.grid.columns);
      }
      if (!fits) unfit_ns_ = std::min(unfit_ns_, candidate.closed_form_ns);
    }
  }

  /// Of the best plan so far.
  double best_ns() const {
    return result_.best.empty() ? kInfinity : result_.best.winner().figures.iteration_ns;
  }

  void refine_shapes() {
    std::vector<Scored> starts = result_.best.top();
    const size_t most = large() ? 2 : kRefinedShapes;
    if (starts.size() > most) starts.resize(most);
    std::vector<Best> bests(starts.size(), Best(kKeptShapes));
    std::vector<int64_t> examined(starts.size(), 0);
    const Progress told = tells(kToldClosed, kToldRefined);
    for_each(starts.size(), options_.threads, told, [&](size_t k) {
      if (stop_.now()) return;
      Assessor assessor(model_, cluster_, request_);
      RefineOptions options;
      options.with = options_.with;
      options.most_trials = trials(starts[k].draft);
      (void)refine(assessor, space_, starts[k], options, stop_, bests[k]);
      examined[k] = assessor.examined();
    });
    for (size_t k = 0; k < starts.size(); ++k) {
      result_.best.add(bests[k]);
      result_.examined += examined[k];
    }
  }

  /// Random changes of the best drafts, and single ones again.
  void anneal_best() {
    std::vector<Scored> starts = result_.best.top();
    if (starts.size() > kAnnealed) starts.resize(kAnnealed);
    std::vector<Best> bests(starts.size(), Best(kKeptShapes));
    std::vector<int64_t> examined(starts.size(), 0);
    for_each(starts.size(), options_.threads, tells(kToldExact, 1), [&](size_t k) {
      Assessor assessor(model_, cluster_, request_);
      AnnealOptions options;
      options.trials = std::min(kAnnealWork / work(starts[k].draft), kMostAnnealed);
      options.seed = k;
      const Scored found = anneal(assessor, space_, starts[k], options, stop_, bests[k]);
      RefineOptions again;
      again.with = options_.with;
      again.most_trials = trials(found.draft);
      (void)refine(assessor, space_, found, again, stop_, bests[k]);
      examined[k] = assessor.examined();
    });
    for (size_t k = 0; k < starts.size(); ++k) {
      result_.best.add(bests[k]);
      result_.examined += examined[k];
    }
  }

  /// Of assessing a draft once: blocks and actions.
  int64_t work(const Draft& draft) const {
    return static_cast<int64_t>(model_.blocks() + model_.values().size()) +
           2 * draft.stages() * draft.micro_batches;
  }
  int64_t trials(const Draft& draft) const {
    return std::clamp(kRefineWork / work(draft), kLeastRefinements, kMostRefinements);
  }

  const cost::GraphProfile& blocks_;
  const BlockModel& model_;
  const cost::Cluster& cluster_;
  const Request& request_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  Stop& stop_;
  Assessor assessor_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::unique_ptr<Line> down_sets_;  // null: not searched
  std::vector<plan::Schedule> plain_;
  std::vector<Grid> grids_;
  std::vector<Task> tasks_;
  double closed_form_ns_ = kInfinity;
  double unfit_ns_ = kInfinity;  // closed form of the fastest candidate that does not fit
  StageCosts::Figure figure_ = StageCosts::Figure::least;
  SearchResult result_{.best = Best(kKeptShapes)};
};

}  // namespace

SearchResult search(const cost::GraphProfile& blocks, const BlockModel& model,
                    const cost::Cluster& cluster, const Request& request, const SearchSpace& space,
                    const SearchOptions& options, Stop& stop) {
  return Searcher(blocks, model, cluster, request, space, options, stop).run();
}

}  // namespace rannc::partition
