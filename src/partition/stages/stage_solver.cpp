#include "partition/stages/stage_solver.h"

#include <algorithm>
#include <climits>
#include <map>
#include <optional>

#include "partition/problem/search_space.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Room for rounding where sums of the same numbers in another order are compared.
constexpr double kRounding = 1 + 1e-9;

/// The stages behind a border, as far as those in front are concerned.
struct State {
  double sum_ns = 0;     ///< forwards and backwards of one micro-batch
  double end_ns = 0;     ///< the same, or the end of the latest reduction in it, if later
  double period_ns = 0;  ///< longest
  int stages = 0;
  int all = 0;             ///< stages that there must be, as a pin among these says; 0: any number
  bool recompute = false;  ///< of the first stage, [border, last) on `replicas` ranks
  int last = 0;
  int replicas = 0;
  int next = -1;  ///< the stages behind it: a state of cell (last, ranks - replicas)

  double total_ns(double repeats) const { return end_ns + repeats * period_ns; }
};

/// Puts a stage in front of `behind`. Its forward delays everything; its backward comes after those
/// behind it, and hides their reductions.
State join(const State& behind, const StageTime& time, bool recompute) {
  const double backward = time.backward_ns + (recompute ? time.recompute_ns : 0.0);
  State state;
  state.sum_ns = behind.sum_ns + time.forward_ns + backward;
  state.end_ns = std::max(behind.end_ns + time.forward_ns, state.sum_ns + time.reduce_ns);
  state.period_ns = std::max(behind.period_ns, time.period_ns(recompute));
  state.stages = behind.stages + 1;
  state.recompute = recompute;
  return state;
}

/// The states of one cell that no other beats.
class Frontier {
 public:
  /// False when a state that is here already is at least as good.
  bool add(const State& state, bool each_stage_count) {
    const auto beats = [&](const State& a, const State& b) {
      const bool same = each_stage_count || a.all > 0;
      return a.sum_ns <= b.sum_ns && a.end_ns <= b.end_ns && a.period_ns <= b.period_ns &&
             (same ? a.stages == b.stages : a.stages <= b.stages) && a.all == b.all;
    };
    for (size_t k = 0; k < states.size(); ++k) {
      if (!beats(states[k], state)) continue;
      // What beat one newcomer is likely to beat the next.
      if (k > 0) std::swap(states[k], states[k / 2]);
      return false;
    }
    std::erase_if(states, [&](const State& old) { return beats(state, old); });
    states.push_back(state);
    return true;
  }

  std::vector<State> states;
};

/// What the pins of a stage's blocks ask for.
struct RangePins {
  int lowest = INT_MAX, highest = INT_MIN;  ///< of those with a number
  bool last = false;                        ///< one wants the last stage

  void add(int pin) {
    if (pin == SearchSpace::kLastStage) last = true;
    if (pin < 0) return;
    lowest = std::min(lowest, pin);
    highest = std::max(highest, pin);
  }
};

class Solver {
 public:
  Solver(const StageCosts& costs, const FrontBounds& bounds, const StageSearch& search)
      : costs_(costs),
        bounds_(bounds),
        search_(search),
        ranges_(costs.ranges()),
        end_(ranges_.end()),
        ranks_(costs.ranks()),
        repeats_(static_cast<double>(costs.micro_batches() - 1)),
        limit_(search.cutoff_ns * kRounding),
        cells_(static_cast<size_t>(end_ + 1) * static_cast<size_t>(ranks_ + 1)) {
    if (search.replicas) wanted_ = static_cast<int>(search.replicas->size());
    if (search.stages) wanted_ = *search.stages;
    most_stages_ = wanted_ > 0 ? wanted_ : std::min(costs.blocks(), ranks_);
    max_replicas_ = search.one_replica ? std::min(1, costs.max_replicas()) : costs.max_replicas();
    classes_.resize(static_cast<size_t>(ranks_ + 1) * static_cast<size_t>(ranks_ + 1));
    for (int first = 0; first < ranks_; ++first) {
      for (int replicas = 1; first + replicas <= ranks_; ++replicas) {
        LinkClasses& classes =
            classes_[static_cast<size_t>(first) * static_cast<size_t>(ranks_ + 1) +
                     static_cast<size_t>(replicas)];
        classes = costs.classes(first, replicas);
        if (std::ranges::find(slowdowns_, classes.slowdown) == slowdowns_.end()) {
          slowdowns_.push_back(classes.slowdown);
        }
      }
    }
    times_.resize(8 * slowdowns_.size());
  }

  StageAnswer run() {
    cell(end_, 0).states.push_back({});
    for (int first = end_ - 1; first >= 0; --first) {
      for (int replicas = 1; replicas <= max_replicas_; ++replicas) {
        if (uses(replicas)) extend(first, replicas);
      }
      finish(first);
    }
    return answer();
  }

 private:
  /// Among those that stages have, which are few.
  std::ptrdiff_t kind_of(double slowdown) const {
    return std::ranges::find(slowdowns_, slowdown) - slowdowns_.begin();
  }

  Frontier& cell(int border, int ranks) {
    return cells_[static_cast<size_t>(border) * static_cast<size_t>(ranks_ + 1) +
                  static_cast<size_t>(ranks)];
  }

  bool uses(int replicas) const {
    if (costs_.skips(replicas)) return false;
    return !search_.replicas ||
           std::ranges::find(*search_.replicas, replicas) != search_.replicas->end();
  }

  /// Whether a stage in front of `behind` at border `first` may have so many replicas and leaves
  /// room for a wanted number of stages.
  bool allowed(const State& behind, int first, int replicas) const {
    const int stages = behind.stages + 1;
    const int in_front = first > 0 ? 1 : 0;
    if (stages + in_front > most_stages_) return false;
    if (wanted_ == 0) return true;
    const int missing = wanted_ - stages;
    if (ranges_.size(first) < missing || (first == 0 && missing > 0)) return false;
    return !search_.replicas ||
           (*search_.replicas)[static_cast<size_t>(wanted_ - stages)] == replicas;
  }

  /// What the blocks of [first, last) ask for, which `before` says of [first, last - 1) in a line.
  RangePins pins_of(int first, int last, RangePins before) const {
    if (ranges_.is_line()) {
      before.add(search_.pins[static_cast<size_t>(last - 1)]);
      return before;
    }
    RangePins pins;
    for (const uint32_t block : ranges_.members(first, last)) pins.add(search_.pins[block]);
    return pins;
  }

  /// How many stages there are when one with these pins is in front of `behind`, at border `first`;
  /// 0: that is open. None when the pins forbid it.
  static std::optional<int> all_stages(const State& behind, int first, const RangePins& pins) {
    if (pins.last && behind.stages > 0) return std::nullopt;
    int all = behind.all;
    if (pins.lowest <= pins.highest) {
      const int asked = pins.lowest + behind.stages + 1;
      if (pins.lowest < pins.highest || (all > 0 && asked != all)) return std::nullopt;
      all = asked;
    }
    const int in_front = all - behind.stages - 1;
    if (all > 0 && (first == 0 ? in_front != 0 : in_front < 1)) return std::nullopt;
    return all;
  }

  /// Every stage [first, last) on `replicas` ranks, in front of every state of cells (last, *).
  void extend(int first, int replicas) {
    const FrontBounds::Bound& front = bounds_.at(first, ranks_ - replicas);
    if (front.sum_ns == kInfinity) return;
    RangeCosts::Walk walk = costs_.walk(first, replicas);
    RangePins pins;
    for (int last = first + 1; last <= end_; ++last) {
      if (!ranges_.nested(first, last)) continue;
      if (!search_.pins.empty()) pins = pins_of(first, last, pins);
      times_.assign(times_.size(), std::nullopt);
      const double compute = costs_.compute_ns(first, last, replicas);
      // In a line, compute and memory only grow with `last`.
      if (front.sum_ns + compute + repeats_ * std::max(front.period_ns, compute) > limit_) {
        if (ranges_.is_line()) break;
        continue;
      }
      const RangeCosts::Held& range = walk.to(last);
      if (costs_.least_bytes(first, last, replicas, range) > costs_.available_bytes()) {
        memory_mattered_ = true;
        if (ranges_.is_line()) break;
        continue;
      }
      const InFlight room = costs_.in_flight(first, last, replicas, range);
      if (room.plain < costs_.micro_batches()) memory_mattered_ = true;
      if (room.plain < 1 && room.recompute < 1) continue;
      const int most_behind = ranks_ - replicas - (first > 0 ? 1 : 0);
      for (int behind = 0; behind <= most_behind; ++behind) {
        const std::vector<State>& states = cell(last, behind).states;
        if (states.empty()) continue;
        const int first_rank = ranks_ - behind - replicas;
        const LinkClasses& classes =
            classes_[static_cast<size_t>(first_rank) * static_cast<size_t>(ranks_ + 1) +
                     static_cast<size_t>(replicas)];
        std::optional<StageTime>& time =
            times_[static_cast<size_t>(8 * kind_of(classes.slowdown) + classes.index())];
        if (!time) time = costs_.time(first, last, replicas, classes);
        for (size_t k = 0; k < states.size(); ++k) {
          if (!allowed(states[k], first, replicas)) continue;
          const std::optional<int> all = all_stages(states[k], first, pins);
          if (!all || (wanted_ > 0 && *all > 0 && *all != wanted_)) continue;
          const int64_t held =
              search_.schedule == plan::Schedule::gpipe
                  ? costs_.micro_batches()
                  : std::min<int64_t>(costs_.micro_batches(), states[k].stages + 1);
          const bool recompute = held > room.plain;
          if (recompute && held > room.recompute) continue;
          State state = join(states[k], *time, recompute);
          state.all = *all;
          state.last = last;
          state.replicas = replicas;
          state.next = static_cast<int>(k);
          const double bound = lower_bound(state, first, first_rank);
          if (bound > limit_ || bound == kInfinity) continue;
          cell(first, behind + replicas).add(state, search_.each_stage_count || wanted_ > 0);
        }
      }
    }
  }

  double lower_bound(const State& state, int border, int ranks_in_front) const {
    const FrontBounds::Bound& front = bounds_.at(border, ranks_in_front);
    if (front.sum_ns == kInfinity) return kInfinity;
    return std::max(state.end_ns + front.forward_ns, state.sum_ns + front.sum_ns) +
           repeats_ * std::max(state.period_ns, front.period_ns);
  }

  void finish(int border) {
    for (int ranks = 1; ranks <= ranks_; ++ranks) {
      std::vector<State>& states = cell(border, ranks).states;
      const auto keep = static_cast<size_t>(search_.beam);
      if (keep > 0 && states.size() > keep) {
        std::ranges::stable_sort(states, {}, [&](const State& state) {
          return lower_bound(state, border, ranks_ - ranks);
        });
        // A pin may forbid what is best, so each number of stages has its own places.
        std::map<int, size_t> kept;
        std::erase_if(states, [&](const State& state) { return ++kept[state.all] > keep; });
      }
      kept_ += static_cast<int64_t>(states.size());
    }
  }

  StageAnswer answer() {
    struct Winner {
      double total_ns;
      int ranks;
      int state;
    };
    std::map<int, Winner> winners;  // per number of stages
    for (int ranks = 1; ranks <= ranks_; ++ranks) {
      const std::vector<State>& states = cell(0, ranks).states;
      for (size_t k = 0; k < states.size(); ++k) {
        const Winner here{states[k].total_ns(repeats_), ranks, static_cast<int>(k)};
        const auto [place, added] = winners.emplace(states[k].stages, here);
        if (!added && here.total_ns < place->second.total_ns) place->second = here;
      }
    }
    StageAnswer result;
    result.states = kept_;
    result.memory_mattered = memory_mattered_;
    for (const auto& [stages, winner] : winners) {
      result.candidates.push_back({trace(winner.ranks, winner.state), winner.total_ns});
    }
    std::ranges::stable_sort(result.candidates, {}, &Candidate::closed_form_ns);
    return result;
  }

  std::vector<StageChoice> trace(int ranks, int state) {
    std::vector<StageChoice> stages;
    for (int border = 0; border < end_;) {
      const State& here = cell(border, ranks).states[static_cast<size_t>(state)];
      stages.push_back({.first = border,
                        .last = here.last,
                        .replicas = here.replicas,
                        .first_rank = ranks_ - ranks,
                        .recompute = here.recompute});
      border = here.last;
      ranks -= here.replicas;
      state = here.next;
    }
    return stages;
  }

  const StageCosts& costs_;
  const FrontBounds& bounds_;
  const StageSearch& search_;
  const RangeCosts& ranges_;
  int end_, ranks_;
  double repeats_, limit_;
  std::vector<Frontier> cells_;                  // (border, ranks used behind it)
  std::vector<LinkClasses> classes_;             // (first rank, replicas)
  std::vector<double> slowdowns_;                // that occur in them
  std::vector<std::optional<StageTime>> times_;  // of a range, by slowdown and link classes
  int wanted_ = 0;                               // stages; 0: any number
  int most_stages_ = 0, max_replicas_ = 0;
  int64_t kept_ = 0;
  bool memory_mattered_ = false;
};

}  // namespace

double closed_form(const StageCosts& costs, const std::vector<StageChoice>& stages) {
  double sum = 0, period = 0, exposed = 0, backward_in_front = 0;
  for (const StageChoice& stage : stages) {
    const StageTime time = costs.time(stage.first, stage.last, stage.replicas,
                                      costs.classes(stage.first_rank, stage.replicas));
    const double backward = time.backward_ns + (stage.recompute ? time.recompute_ns : 0.0);
    exposed = std::max(exposed, time.reduce_ns - backward_in_front);
    sum += time.forward_ns + backward;
    backward_in_front += backward;
    period = std::max(period, time.period_ns(stage.recompute));
  }
  return sum + static_cast<double>(costs.micro_batches() - 1) * period + exposed;
}

int64_t in_flight(plan::Schedule schedule, int64_t micro_batches, int stages, int stage) {
  return schedule == plan::Schedule::gpipe ? micro_batches
                                           : std::min<int64_t>(micro_batches, stages - stage);
}

StageAnswer solve_stages(const StageCosts& costs, const FrontBounds& bounds,
                         const StageSearch& search) {
  RANNC_CHECK(search.schedule != plan::Schedule::interleaved, "interleaved plans are not searched");
  return Solver(costs, bounds, search).run();
}

}  // namespace rannc::partition
