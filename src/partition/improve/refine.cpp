#include "partition/improve/refine.h"

#include <algorithm>
#include <numeric>

#include "partition/blocks/movable_parts.h"
#include "partition/improve/group_line.h"
#include "partition/improve/move_blocks.h"

namespace rannc::partition {
namespace {

class Refiner {
 public:
  Refiner(Assessor& assessor, const SearchSpace& space, Scored start, const RefineOptions& options,
          Stop& stop, Best& best)
      : assessor_(assessor),
        model_(assessor.model()),
        space_(space),
        options_(options),
        stop_(stop),
        best_(best),
        now_(std::move(start)),
        line_(line_of(now_.draft)),
        branches_(branches(model_)) {}

  Scored run() {
    bool changed = true;
    while (changed && !done()) {
      changed = false;
      while (move_borders() && !done()) changed = true;
      if (branches_ && options_.with.parts) changed |= move_parts();
      if (options_.borders_only || now_.columns == 0) continue;
      changed |= move_ranks();
      if (options_.with.places) changed |= move_places();
      if (branches_ && options_.with.stage_order) changed |= move_stages();
      changed |= change_schedule();
      changed |= change_stages();
    }
    return std::move(now_);
  }

 private:
  bool done() { return trials_ >= options_.most_trials || stop_.now(); }

  /// Takes the draft if it is better. Its recompute is chosen here.
  bool try_draft(Draft draft) {
    if (done() || !respects_pins(space_, draft)) return false;
    ++trials_;
    assessor_.choose_recompute(draft);
    Scored scored{std::move(draft), now_.columns, {}};
    scored.figures = assessor_.assess(scored.draft, now_.figures.iteration_ns);
    best_.add(scored);
    if (!better(scored, now_)) return false;
    now_ = std::move(scored);
    return true;
  }

  // --- blocks ---------------------------------------------------------------------------------

  bool move_borders() {
    bool changed = false;
    for (int s = 0; s + 1 < now_.draft.stages() && !done(); ++s) {
      for (const int count : {1, 4, 16}) {
        for (const bool up : {true, false}) {
          bool better_here = true;
          while (better_here && !done()) {
            Draft draft = now_.draft;
            better_here = shift(model_, draft, up ? s : s + 1, up ? s + 1 : s, count) &&
                          try_draft(std::move(draft));
            changed |= better_here;
          }
        }
      }
      if (options_.with.inner_blocks) changed |= move_inner_blocks(s);
    }
    return changed;
  }

  /// Blocks that could change sides although others are nearer to the border: where the graph
  /// branches.
  bool move_inner_blocks(int s) {
    /// Blocks of a stage that could change sides before their neighbours; more of them are left to
    /// moves of parts.
    /// tuned by: with 12 and 48, plans of `ablations large --problems 300 --inexact` stay as they
    /// are.
    /// without it: each round of refining tries every one of them, on either side of each border.
    constexpr size_t kMostInner = 24;
    bool changed = false;
    for (const bool up : {true, false}) {
      const int from = up ? s : s + 1, to = up ? s + 1 : s;
      std::vector<uint32_t> movable;
      int members = 0;
      for (uint32_t block = 0; block < now_.draft.stage_of.size(); ++block) {
        if (now_.draft.stage_of[block] != from) continue;
        ++members;
        if (can_move(model_, now_.draft, block, to)) movable.push_back(block);
      }
      if (movable.size() < 2 || movable.size() > kMostInner || members < 2) continue;
      for (const uint32_t block : movable) {
        if (now_.draft.stage_of[block] != from || !can_move(model_, now_.draft, block, to))
          continue;
        if (std::ranges::count(now_.draft.stage_of, from) < 2) break;
        Draft draft = now_.draft;
        draft.stage_of[block] = to;
        changed |= try_draft(std::move(draft));
      }
    }
    return changed;
  }

  /// Parts of a stage to any other stage, in graphs with branches.
  bool move_parts() {
    bool changed = false;
    for (uint32_t block = 0; block < model_.blocks() && !done(); ++block) {
      for (const bool later : {true, false}) {
        const std::vector<int>& stages = now_.draft.stage_of;
        const std::vector<uint32_t> part = part_of(model_, stages, block, later);
        const auto members = std::ranges::count(stages, stages[block]);
        if (static_cast<std::ptrdiff_t>(part.size()) == members) continue;
        const MoveRange range = range_of_part(model_, stages, part, later);
        for (int to = range.first; to <= range.last && !done(); ++to) {
          Draft draft = now_.draft;
          for (const uint32_t member : part) draft.stage_of[member] = to;
          if (!try_draft(std::move(draft))) continue;
          changed = true;
          break;
        }
      }
    }
    return changed;
  }

  // --- places ---------------------------------------------------------------------------------

  /// The draft on groups of other sizes, along `line`.
  bool try_line(Draft draft, const std::vector<int>& counts, std::vector<size_t> line) {
    place(draft, assessor_.cluster(), counts, line, now_.columns);
    if (!try_draft(std::move(draft))) return false;
    line_ = std::move(line);
    return true;
  }

  /// Two groups, or a group and the idle ranks, change places: where hosts differ.
  bool move_places() {
    if (assessor_.cluster().hosts == 1) return false;
    bool changed = false;
    for (size_t a = 0; a < line_.size() && !done(); ++a) {
      for (size_t b = a + 1; b < line_.size() && !done(); ++b) {
        std::vector<size_t> line = line_;
        std::swap(line[a], line[b]);
        if (try_line(now_.draft, counts(), line)) {
          changed = true;
          continue;
        }
        line = line_;
        std::rotate(line.begin() + static_cast<std::ptrdiff_t>(a),
                    line.begin() + static_cast<std::ptrdiff_t>(a) + 1,
                    line.begin() + static_cast<std::ptrdiff_t>(b) + 1);
        changed |= try_line(now_.draft, counts(), std::move(line));
      }
    }
    return changed;
  }

  /// A stage comes earlier or later in the order of stages, among those that it does not depend on.
  bool move_stages() {
    if (now_.draft.interleave > 1) return false;
    bool changed = false;
    for (int s = 0; s < now_.draft.stages() && !done(); ++s) {
      const MoveRange range = range_of_stage(model_, now_.draft.stage_of, s, now_.draft.stages());
      for (int to = range.first; to <= range.last && !done(); ++to) {
        if (to == s) continue;
        Draft draft = now_.draft;
        for (int& stage : draft.stage_of) stage = renumbered(stage, s, to);
        std::vector<int> old = counts(), sizes(old.size());
        for (size_t k = 0; k < old.size(); ++k) {
          sizes[static_cast<size_t>(renumbered(static_cast<int>(k), s, to))] = old[k];
        }
        if (!are_wanted(sizes)) continue;
        std::vector<size_t> line = line_;
        for (size_t& group : line) {
          if (group == sizes.size()) continue;
          group = static_cast<size_t>(renumbered(static_cast<int>(group), s, to));
        }
        if (try_line(draft, sizes, line) || try_line(std::move(draft), sizes, line_)) {
          changed = true;
          break;
        }
      }
    }
    return changed;
  }

  // --- ranks ----------------------------------------------------------------------------------

  std::vector<int> counts() const { return counts_of(now_.draft, now_.columns); }

  int width() const { return assessor_.cluster().ranks() / now_.columns; }

  /// Whether groups of these sizes have the replicas that the request forces.
  bool are_wanted(const std::vector<int>& counts) const {
    if (space_.replicas.empty()) return true;
    for (size_t k = 0; k < counts.size(); ++k) {
      if (space_.replicas[k] != counts[k] * now_.columns) return false;
    }
    return true;
  }

  /// The draft on groups of other sizes, from the front of each column on, or from its end.
  bool try_counts(Draft draft, const std::vector<int>& counts, std::vector<size_t> line) {
    const int sum = std::accumulate(counts.begin(), counts.end(), 0);
    if (sum > width() || *std::ranges::min_element(counts) < 1) return false;
    const int most = *std::ranges::max_element(counts) * now_.columns;
    if (draft.micro_batches * most > assessor_.request().global_batch) return false;
    if (space_.one_replica && most > 1) return false;
    if (!are_wanted(counts)) return false;
    bool changed = try_line(draft, counts, line);
    if (sum < width() && assessor_.cluster().hosts > 1) {
      const size_t idle = counts.size();
      for (const bool front : {true, false}) {
        std::vector<size_t> other = line;
        std::erase(other, idle);
        other.insert(front ? other.begin() : other.end(), idle);
        if (other != line) changed |= try_line(draft, counts, std::move(other));
      }
    }
    return changed;
  }

  bool move_ranks() {
    if (!space_.replicas.empty()) return false;
    /// Up to so many groups of ranks, a rank moves from any to any; of more, only to groups at most
    /// two places away.
    /// tuned by: `planner_bench` (the time).
    /// without it: the moves of ranks grow with the square of the groups.
    constexpr size_t kFewGroups = 8;
    bool changed = false;
    const size_t groups = now_.draft.groups.size();
    for (const int step : {1, 4, 16}) {
      for (size_t to = 0; to < groups && !done(); ++to) {
        std::vector<int> more = counts();
        more[to] += step;
        changed |= try_counts(now_.draft, more, line_);
        std::vector<int> fewer = counts();
        fewer[to] -= step;
        changed |= try_counts(now_.draft, fewer, line_);
        for (size_t from = 0; from < groups && !done(); ++from) {
          const size_t distance = from > to ? from - to : to - from;
          if (from == to || (groups > kFewGroups && distance > 2)) continue;
          std::vector<int> moved = counts();
          moved[to] += step;
          moved[from] -= step;
          changed |= try_counts(now_.draft, moved, line_);
        }
      }
      if (step * 4 > width()) break;
    }
    return changed;
  }

  // --- everything else ------------------------------------------------------------------------

  bool change_schedule() {
    bool changed = false;
    for (const plan::Schedule schedule : space_.schedules) {
      const bool chunks = now_.draft.schedule == plan::Schedule::interleaved;
      if (chunks || schedule == plan::Schedule::interleaved) continue;
      if (schedule == now_.draft.schedule) continue;
      Draft draft = now_.draft;
      draft.schedule = schedule;
      changed |= try_draft(std::move(draft));
    }
    const auto& allowed = space_.micro_batches;
    for (const int step : {1, -1, 2, -2}) {
      const auto place =
          std::ranges::find(allowed, now_.draft.micro_batches) - allowed.begin() + step;
      if (place < 0 || place >= static_cast<ptrdiff_t>(allowed.size())) continue;
      Draft draft = now_.draft;
      draft.micro_batches = allowed[static_cast<size_t>(place)];
      if (draft.interleave > 1 && draft.micro_batches % static_cast<int64_t>(draft.groups.size())) {
        continue;
      }
      changed |= try_counts(std::move(draft), counts(), line_);
    }
    return changed;
  }

  bool change_stages() {
    if (space_.stages > 0 || now_.draft.interleave > 1) return false;
    bool changed = false;
    for (int s = 0; s + 1 < now_.draft.stages() && !done(); ++s) {
      Draft draft = now_.draft;
      std::vector<int> joined = counts();
      const auto k = static_cast<size_t>(s);
      joined[k] += joined[k + 1];
      joined.erase(joined.begin() + s + 1);
      for (int& stage : draft.stage_of) stage -= stage > s ? 1 : 0;
      draft.groups.pop_back();
      std::vector<size_t> line = line_;
      std::erase(line, k + 1);
      for (size_t& group : line) group -= group > k ? 1 : 0;
      if (try_counts(std::move(draft), joined, std::move(line))) {
        changed = true;
        s = std::max(-1, s - 2);
      }
    }
    for (int s = 0; s < now_.draft.stages() && !done(); ++s) changed |= split(s);
    return changed;
  }

  /// Cuts a stage where its time is shared like its ranks.
  bool split(int s) {
    const int count = counts()[static_cast<size_t>(s)];
    bool changed = false;
    for (const int first : {count / 2, 1, count - 1}) {
      if (first < 1 || first >= count) continue;
      std::vector<uint32_t> members;
      double whole = 0;
      const BlockCosts::AtRows& costs = model_.costs().at(1);
      const auto time = [&](uint32_t block) {
        const double device = costs.forward_ns[block] + costs.backward_ns[block];
        if (costs.forward_host_ns.empty()) return device;
        return std::max(device, costs.forward_host_ns[block] + costs.backward_host_ns[block]);
      };
      for (uint32_t block = 0; block < now_.draft.stage_of.size(); ++block) {
        if (now_.draft.stage_of[block] != s) continue;
        members.push_back(block);
        whole += time(block);
      }
      if (members.size() < 2) return changed;
      Draft draft = now_.draft;
      for (int& stage : draft.stage_of) stage += stage > s ? 1 : 0;
      double front = 0;
      size_t kept = 0;
      for (; kept + 1 < members.size(); ++kept) {
        if (kept > 0 && front + time(members[kept]) / 2 > whole * first / count) break;
        front += time(members[kept]);
      }
      // Blocks are numbered in a topological order, so what is left is a convex part.
      for (size_t k = kept; k < members.size(); ++k) draft.stage_of[members[k]] = s + 1;
      std::vector<int> parts = counts();
      parts[static_cast<size_t>(s)] = first;
      parts.insert(parts.begin() + s + 1, count - first);
      std::vector<size_t> line = line_;
      const auto behind = static_cast<size_t>(s);
      for (size_t& group : line) group += group > behind ? 1 : 0;
      line.insert(std::ranges::find(line, behind) + 1, behind + 1);
      if (try_counts(std::move(draft), parts, std::move(line))) return true;
    }
    return changed;
  }

  Assessor& assessor_;
  const BlockModel& model_;
  const SearchSpace& space_;
  const RefineOptions& options_;
  Stop& stop_;
  Best& best_;
  Scored now_;
  std::vector<size_t> line_;  // groups of now_ in the order of their ranks
  bool branches_;
  int64_t trials_ = 0;
};

}  // namespace

Scored refine(Assessor& assessor, const SearchSpace& space, Scored scored,
              const RefineOptions& options, Stop& stop, Best& best) {
  return Refiner(assessor, space, std::move(scored), options, stop, best).run();
}

}  // namespace rannc::partition
