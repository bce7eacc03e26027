#include "partition/brute_force.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace rannc::partition::testing {

using brute::Choice;
using brute::Judge;
using brute::Mask;
using brute::Shape;
using plan::Schedule;

namespace {

/// Calls use(next stage) for each set of nodes that may follow `placed`.
void for_each_next(const brute::Tables& tables, Mask placed, const std::function<void(Mask)>& use) {
  const Mask rest = tables.all() & ~placed;
  for (Mask set = rest; set != 0; set = (set - 1) & rest) {
    bool closed = true;
    for (int k = 0; k < tables.nodes() && closed; ++k) {
      if ((set >> k & 1) == 0) continue;
      closed = (tables.sources(k) & ~(placed | set)) == 0 && (tables.group(k) & ~set) == 0;
    }
    if (closed) use(set);
  }
}

class Search {
 public:
  Search(const cost::GraphProfile& profile, const cost::Cluster& cluster, const Request& request)
      : cluster_(cluster), request_(request), judge_(profile, cluster, request) {}

  Optimum run() {
    // One stage first: what it takes already excludes most of the others.
    for (const bool one_stage : {true, false}) {
      candidates_.clear();
      for (const std::vector<Mask>& cut :
           all_cuts(judge_.tables(), static_cast<size_t>(judge_.tables().nodes()))) {
        if ((cut.size() == 1) == one_stage) add_shapes(cut);
      }
      std::ranges::stable_sort(candidates_, {}, &Candidate::bound_ns);
      for (const Candidate& candidate : candidates_) {
        if (candidate.bound_ns >= best_ns_) break;
        if (judge_.simulated_bound(candidate.choice) >= best_ns_) continue;
        judge_.for_each_placement(candidate.choice, [&](const Choice& placed) {
          ++result_.simulated;
          const double time_ns = judge_.iteration_ns(placed);
          if (time_ns >= best_ns_) return;
          best_ns_ = time_ns;
          best_ = placed;
        });
      }
    }
    result_.feasible = !best_.stages.empty();
    if (result_.feasible) {
      result_.iteration_ns = best_ns_;
      result_.plan = judge_.to_plan(best_);
    }
    return result_;
  }

 private:
  struct Candidate {
    double bound_ns = 0;
    Choice choice;
  };

  void add_shapes(const std::vector<Mask>& cut) {
    const auto stages = static_cast<int>(cut.size());
    const Force& force = request_.force;
    if (force.stages && *force.stages != stages) return;
    if (force.replicas && force.replicas->size() != cut.size()) return;
    for (const int64_t m : allowed_micro_batches(request_)) {
      if (m > request_.global_batch || (force.micro_batches && *force.micro_batches != m)) continue;
      for (const Schedule schedule : request_.schedules) {
        if (force.schedule && *force.schedule != schedule) continue;
        const bool interleaved = schedule == Schedule::interleaved;
        for (int v = interleaved ? 2 : 1; v <= (interleaved ? request_.max_interleave : 1); ++v) {
          if (force.interleave && *force.interleave != v) continue;
          if (stages % v != 0 || (interleaved && (stages / v < 2 || m % (stages / v) != 0))) {
            continue;
          }
          if (stages / v > cluster_.ranks()) continue;
          Choice choice;
          choice.shape = {schedule, stages, stages / v, m};
          choice.stages = cut;
          share_ranks(choice, 0, cluster_.ranks());
        }
      }
    }
  }

  /// Group by group: its replicas, then what it recomputes.
  void share_ranks(Choice& choice, int group, int ranks) {
    if (group == choice.shape.groups) {
      ++result_.candidates;
      const double bound = judge_.work_bound(choice);
      if (bound < best_ns_) candidates_.push_back({bound, choice});
      return;
    }
    const auto g = static_cast<size_t>(group);
    const int most = ranks - (choice.shape.groups - group - 1);
    for (int replicas = 1; replicas <= most; ++replicas) {
      if (choice.shape.micro_batches * replicas > request_.global_batch) break;
      if (!allowed(choice, group, replicas)) continue;
      choice.replicas[g] = replicas;
      for (const uint32_t recompute : recompute_choices(choice, group)) {
        const uint32_t before = choice.recompute;
        choice.recompute |= recompute;
        share_ranks(choice, group + 1, ranks - replicas);
        choice.recompute = before;
      }
    }
  }

  [[nodiscard]] bool allowed(const Choice& choice, int group, int replicas) const {
    if (!request_.force.replicas) return true;
    for (int s = group; s < choice.shape.stages; s += choice.shape.groups) {
      if ((*request_.force.replicas)[static_cast<size_t>(s)] != replicas) return false;
    }
    return true;
  }

  /// Sets of stages of `group` that fit when recomputed. Recompute never makes a plain schedule
  /// faster, so there the empty set is enough when it fits. The reductions of interleaved stages
  /// may change places, so there all count.
  std::vector<uint32_t> recompute_choices(Choice choice, int group) {
    uint32_t stages = 0;
    for (int s = group; s < choice.shape.stages; s += choice.shape.groups) stages |= 1u << s;
    std::vector<uint32_t> sets;
    if (request_.recompute == Recompute::always) {
      sets = {stages};
    } else if (request_.recompute == Recompute::never) {
      sets = {0};
    } else {
      for (uint32_t set = 0;; set = (set - stages) & stages) {
        sets.push_back(set);
        if (set == stages) break;
      }
    }
    std::vector<uint32_t> fitting;
    const uint32_t before = choice.recompute;
    for (const uint32_t set : sets) {
      choice.recompute = before | set;
      if (judge_.peak_bytes(choice, group) > judge_.tables().memory_limit()) continue;
      fitting.push_back(set);
      if (choice.shape.schedule != Schedule::interleaved) break;
    }
    return fitting;
  }

  const cost::Cluster& cluster_;
  const Request& request_;
  Judge judge_;
  std::vector<Candidate> candidates_;
  double best_ns_ = std::numeric_limits<double>::infinity();
  Choice best_;
  Optimum result_;
};

}  // namespace

std::vector<std::vector<Mask>> all_cuts(const brute::Tables& tables, size_t most_stages) {
  std::vector<std::vector<Mask>> cuts;
  std::vector<Mask> stages;
  const std::function<void(Mask)> extend = [&](Mask placed) {
    if (placed == tables.all()) {
      cuts.push_back(stages);
      return;
    }
    if (stages.size() == most_stages) return;
    for_each_next(tables, placed, [&](Mask next) {
      stages.push_back(next);
      extend(placed | next);
      stages.pop_back();
    });
  };
  extend(0);
  return cuts;
}

int64_t count_cuts(const brute::Tables& tables, int64_t limit) {
  std::vector<int64_t> ways(size_t{tables.all()} + 1, -1);
  ways[tables.all()] = 1;
  const std::function<int64_t(Mask)> count = [&](Mask placed) {
    int64_t& known = ways[placed];
    if (known >= 0) return known;
    int64_t sum = 0;
    for_each_next(tables, placed,
                  [&](Mask next) { sum = std::min(limit, sum + count(placed | next)); });
    return known = sum;
  };
  return count(0);
}

Optimum brute_force(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                    const Request& request) {
  return Search(profile, cluster, request).run();
}

}  // namespace rannc::partition::testing
