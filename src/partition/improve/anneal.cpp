#include "partition/improve/anneal.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "partition/blocks/movable_parts.h"
#include "partition/improve/group_line.h"
#include "partition/score/lay_out.h"

namespace rannc::partition {
namespace {

/// Layouts that are tried.
/// tuned by: with 4, plans of `ablations large --problems 300 --inexact` stay as they are.
/// without it: a cluster of many hosts has layouts of few ranks in a column, into which few drafts
/// fit.
constexpr size_t kMostLayouts = 8;

/// A draft with the sizes and the order of its groups in each column.
struct State {
  Scored scored;
  std::vector<int> counts;
  std::vector<size_t> line;
};

class Annealer {
 public:
  Annealer(Assessor& assessor, const SearchSpace& space, const AnnealOptions& options, Stop& stop,
           Best& best)
      : assessor_(assessor),
        model_(assessor.model()),
        space_(space),
        options_(options),
        stop_(stop),
        best_(best),
        columns_(space.replicas.empty() && !space.one_replica
                     ? column_choices(assessor.cluster(), kMostLayouts)
                     : std::vector<int>{}),
        random_(options.seed) {}

  Scored run(const Scored& start) {
    State now{start, counts_of(start.draft, start.columns), line_of(start.draft)};
    Scored found = start;
    for (int64_t k = 0; k < options_.trials && !stop_.now(); ++k) {
      const double left = 1 - static_cast<double>(k) / static_cast<double>(options_.trials);
      State next = now;
      if (!change(next) || !respects_pins(space_, next.scored.draft)) continue;
      const double most = now.scored.figures.iteration_ns * (1 + options_.hot * left * left);
      assessor_.choose_recompute(next.scored.draft);
      next.scored.figures = assessor_.assess(next.scored.draft, most);
      if (!next.scored.figures.fits || !(next.scored.figures.iteration_ns <= most)) continue;
      now = std::move(next);
      if (!better(now.scored, found)) continue;
      found = now.scored;
      best_.add(found);
    }
    return found;
  }

 private:
  size_t draw(size_t count) { return static_cast<size_t>(random_() % count); }
  int draw(int first, int last) {
    return first + static_cast<int>(draw(static_cast<size_t>(last - first + 1)));
  }

  bool change(State& state) {
    // Most often blocks, as there are many of them.
    switch (draw(16)) {
      case 0:
      case 1:
        return move_rank(state);
      case 2:
        return swap_places(state);
      case 3:
        return move_stage(state);
      case 4:
        return draw(2) == 0 ? split(state) : join(state);
      case 5:
        return draw(2) == 0 ? other_count(state) : other_columns(state);
      case 6:
      case 7:
      case 8:
      case 9:
        return move_part(state.scored.draft.stage_of);
      default:
        return move_block(state.scored.draft.stage_of);
    }
  }

  bool move_block(std::vector<int>& stages) {
    const auto block = static_cast<uint32_t>(draw(stages.size()));
    int first = 0, last = *std::ranges::max_element(stages);
    for (const uint32_t next : model_.before(block)) first = std::max(first, stages[next]);
    for (const uint32_t next : model_.after(block)) last = std::min(last, stages[next]);
    const int to = draw(first, last);
    if (to == stages[block] || std::ranges::count(stages, stages[block]) < 2) return false;
    stages[block] = to;
    return true;
  }

  bool move_part(std::vector<int>& stages) {
    const auto block = static_cast<uint32_t>(draw(stages.size()));
    const bool later = draw(2) == 0;
    const std::vector<uint32_t> part = part_of(model_, stages, block, later);
    const auto members = std::ranges::count(stages, stages[block]);
    if (static_cast<std::ptrdiff_t>(part.size()) == members) return false;
    const MoveRange range = range_of_part(model_, stages, part, later);
    if (range.first > range.last) return false;
    const int to = draw(range.first, range.last);
    for (const uint32_t member : part) stages[member] = to;
    return true;
  }

  bool move_rank(State& state) {
    const size_t groups = state.counts.size(), from = draw(groups + 1), to = draw(groups + 1);
    if (from == to) return false;
    const int ranks = draw(1, 2);
    if (from < groups) state.counts[from] -= ranks;
    if (to < groups) state.counts[to] += ranks;
    return lay(state);
  }

  bool swap_places(State& state) {
    const size_t a = draw(state.line.size()), b = draw(state.line.size());
    if (a == b) return false;
    std::swap(state.line[a], state.line[b]);
    return lay(state);
  }

  bool move_stage(State& state) {
    const int count = static_cast<int>(state.counts.size()), stage = draw(0, count - 1);
    const MoveRange range = range_of_stage(model_, state.scored.draft.stage_of, stage, count);
    const int to = draw(range.first, range.last);
    if (to == stage) return false;
    for (int& s : state.scored.draft.stage_of) s = renumbered(s, stage, to);
    const std::vector<int> old = state.counts;
    for (int k = 0; k < count; ++k) {
      state.counts[static_cast<size_t>(renumbered(k, stage, to))] = old[static_cast<size_t>(k)];
    }
    if (draw(2) == 0) {  // its ranks come with it
      for (size_t& group : state.line) {
        if (group == old.size()) continue;
        group = static_cast<size_t>(renumbered(static_cast<int>(group), stage, to));
      }
    }
    return lay(state);
  }

  bool split(State& state) {
    const int s = draw(0, static_cast<int>(state.counts.size()) - 1);
    const auto k = static_cast<size_t>(s);
    if (space_.stages > 0 || state.counts[k] < 2) return false;
    std::vector<int>& stages = state.scored.draft.stage_of;
    const int members = static_cast<int>(std::ranges::count(stages, s));
    if (members < 2) return false;
    // Blocks are numbered in a topological order, so what is left is a convex part.
    int kept = draw(1, members - 1);
    for (int& stage : stages) {
      if (stage > s || (stage == s && kept-- <= 0)) ++stage;
    }
    const int first = draw(1, state.counts[k] - 1);
    state.counts.insert(state.counts.begin() + s + 1, state.counts[k] - first);
    state.counts[k] = first;
    for (size_t& group : state.line) group += group > k ? 1 : 0;
    state.line.insert(std::ranges::find(state.line, k) + 1, k + 1);
    return lay(state);
  }

  bool join(State& state) {
    if (space_.stages > 0 || state.counts.size() < 2) return false;
    const int s = draw(0, static_cast<int>(state.counts.size()) - 2);
    const auto k = static_cast<size_t>(s);
    state.counts[k] += state.counts[k + 1];
    state.counts.erase(state.counts.begin() + s + 1);
    for (int& stage : state.scored.draft.stage_of) stage -= stage > s ? 1 : 0;
    std::erase(state.line, k + 1);
    for (size_t& group : state.line) group -= group > k ? 1 : 0;
    return lay(state);
  }

  bool other_count(State& state) {
    Draft& draft = state.scored.draft;
    const int64_t count = space_.micro_batches[draw(space_.micro_batches.size())];
    if (count == draft.micro_batches) return false;
    draft.micro_batches = count;
    return lay(state);
  }

  bool other_columns(State& state) {
    if (columns_.size() < 2) return false;
    const int before = std::exchange(state.scored.columns, columns_[draw(columns_.size())]);
    if (state.scored.columns == before) return false;
    for (int& count : state.counts) count = std::max(1, count * before / state.scored.columns);
    return lay(state);
  }

  /// The state on groups of its sizes, if they are allowed.
  bool lay(State& state) {
    const int columns = state.scored.columns, width = assessor_.cluster().ranks() / columns;
    const std::vector<int>& counts = state.counts;
    if (*std::ranges::min_element(counts) < 1) return false;
    if (std::accumulate(counts.begin(), counts.end(), 0) > width) return false;
    Draft& draft = state.scored.draft;
    const int most = *std::ranges::max_element(counts) * columns;
    if (draft.micro_batches * most > assessor_.request().global_batch) return false;
    if (space_.one_replica && most > 1) return false;
    for (size_t k = 0; k < space_.replicas.size(); ++k) {
      if (space_.replicas[k] != counts[k] * columns) return false;
    }
    place(draft, assessor_.cluster(), counts, state.line, columns);
    return true;
  }

  Assessor& assessor_;
  const BlockModel& model_;
  const SearchSpace& space_;
  const AnnealOptions& options_;
  Stop& stop_;
  Best& best_;
  std::vector<int> columns_;
  std::mt19937_64 random_;
};

}  // namespace

Scored anneal(Assessor& assessor, const SearchSpace& space, const Scored& start,
              const AnnealOptions& options, Stop& stop, Best& best) {
  const bool regular = start.columns > 0 && start.draft.interleave == 1;
  if (!regular || !start.figures.fits) return start;
  return Annealer(assessor, space, options, stop, best).run(start);
}

}  // namespace rannc::partition
