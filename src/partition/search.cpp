#include "partition/search.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <tuple>

namespace rannc::partition {
namespace {

/// States per cell of the narrow search.
constexpr int kBeam = 2;

struct PerCount {
  StageCosts costs;
  FrontBounds bounds;
  PerCount(const RangeCosts& ranges, const cost::Cluster& cluster, const Request& request,
           int64_t micro_batches)
      : costs(ranges, cluster, request, micro_batches), bounds(costs) {}

  double lower_bound_ns() const {
    const FrontBounds::Bound& all = bounds.at(costs.blocks(), costs.ranks());
    return all.sum_ns + static_cast<double>(costs.micro_batches() - 1) * all.period_ns;
  }
};

StageSearch restricted(const SearchSpace& space, plan::Schedule schedule) {
  StageSearch search;
  search.schedule = schedule;
  search.one_replica = space.one_replica;
  if (space.stages > 0) search.stages = space.stages;
  if (!space.replicas.empty()) search.replicas = space.replicas;
  return search;
}

/// One stage on `replicas` ranks, recomputing only where it must, or nothing when it does not fit.
void add_single_stage(const StageCosts& costs, plan::Schedule schedule, int replicas,
                      std::vector<Arrangement>& arrangements) {
  const InFlight room = costs.in_flight(0, costs.blocks(), replicas);
  const int64_t held = in_flight(schedule, costs.micro_batches(), 1, 0);
  if (held > room.plain && held > room.recompute) return;
  Arrangement single{schedule, costs.micro_batches(), {}, 0};
  single.stages.push_back({.first = 0,
                           .last = costs.blocks(),
                           .replicas = replicas,
                           .first_rank = costs.ranks() - replicas,
                           .recompute = held > room.plain});
  single.closed_form_ns = closed_form(costs, single.stages);
  arrangements.push_back(std::move(single));
}

void add_single_stages(const StageCosts& costs, const SearchSpace& space, plan::Schedule schedule,
                       std::vector<Arrangement>& arrangements) {
  if (space.stages > 1 || costs.max_replicas() < 1) return;
  if (!space.replicas.empty()) {
    add_single_stage(costs, schedule, space.replicas.front(), arrangements);
    return;
  }
  add_single_stage(costs, schedule, 1, arrangements);
  if (!space.one_replica && costs.max_replicas() > 1) {
    add_single_stage(costs, schedule, costs.max_replicas(), arrangements);
  }
}

void sort_and_cap(std::vector<Arrangement>& arrangements) {
  std::ranges::stable_sort(arrangements, {}, &Arrangement::closed_form_ns);
  std::vector<Arrangement> distinct;
  for (Arrangement& next : arrangements) {
    if (distinct.size() == kMostArrangements) break;
    const bool known = std::ranges::any_of(distinct, [&](const Arrangement& other) {
      return other.schedule == next.schedule && other.micro_batches == next.micro_batches &&
             other.stages == next.stages;
    });
    if (!known) distinct.push_back(std::move(next));
  }
  arrangements = std::move(distinct);
}

}  // namespace

SearchResult search(const RangeCosts& ranges, const cost::Cluster& cluster, const Request& request,
                    const SearchSpace& space) {
  SearchResult result;
  result.closed_form_ns = std::numeric_limits<double>::infinity();
  std::deque<PerCount> counts;
  for (const int64_t m : space.micro_batches) counts.emplace_back(ranges, cluster, request, m);

  const auto add = [&](const PerCount& count, plan::Schedule schedule, StageAnswer answer) {
    result.states += answer.states;
    for (Candidate& candidate : answer.candidates) {
      result.closed_form_ns = std::min(result.closed_form_ns, candidate.closed_form_ns);
      result.arrangements.push_back({schedule, count.costs.micro_batches(),
                                     std::move(candidate.stages), candidate.closed_form_ns});
    }
  };
  for (const PerCount& count : counts) {
    for (const plan::Schedule schedule : space.schedules) {
      add_single_stages(count.costs, space, schedule, result.arrangements);
    }
  }
  for (const Arrangement& single : result.arrangements) {
    result.closed_form_ns = std::min(result.closed_form_ns, single.closed_form_ns);
  }
  for (const PerCount& count : counts) {
    for (const plan::Schedule schedule : space.schedules) {
      StageSearch narrow = restricted(space, schedule);
      narrow.beam = kBeam;
      narrow.cutoff_ns = result.closed_form_ns;
      add(count, schedule, solve_stages(count.costs, count.bounds, narrow));
    }
  }
  for (const PerCount& count : counts) {
    for (const plan::Schedule schedule : space.schedules) {
      StageSearch full = restricted(space, schedule);
      full.each_stage_count = true;
      full.cutoff_ns = result.closed_form_ns * (1 + kMargin);
      if (count.lower_bound_ns() > full.cutoff_ns) continue;
      add(count, schedule, solve_stages(count.costs, count.bounds, full));
    }
  }
  sort_and_cap(result.arrangements);
  return result;
}

}  // namespace rannc::partition
