#include "rannc/partition/allowed.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "partition/candidates/micro_batch_numbers.h"
#include "rannc/partition/planner.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

using Search = std::function<plan::Plan(const Request&)>;
using Replicas = std::vector<int>;  // [stage]

bool allows(const Allowed& allowed, const Replicas& replicas) {
  return !allowed.powers_of_two || std::ranges::all_of(replicas, [](int count) {
    return std::has_single_bit(static_cast<unsigned>(count));
  });
}

/// Adds to `ways` all in which up to `ranks` go to `stages`, each of which gets one at least;
/// `replicas` are those of the stages before.
void share_out(int ranks, int stages, Replicas& replicas, std::vector<Replicas>& ways) {
  if (stages == 0) {
    ways.push_back(replicas);
    return;
  }
  for (int count = 1; count <= ranks - stages + 1; ++count) {
    replicas.push_back(count);
    share_out(ranks - count, stages - 1, replicas, ways);
    replicas.pop_back();
  }
}

/// Replicas of each of `stages`, in all ways that are looked at.
std::vector<Replicas> ways_to_share_out(int ranks, int stages) {
  std::vector<Replicas> ways;
  if (ranks <= kMostRanksInAllWays) {
    Replicas replicas;
    share_out(ranks, stages, replicas, ways);
    return ways;
  }
  for (int count = 1; count <= ranks / stages; ++count) {
    ways.emplace_back(static_cast<size_t>(stages), count);
  }
  return ways;
}

/// The fastest answer to several requests.
class Fastest {
 public:
  explicit Fastest(const Search& search) : search_(search) {}

  void look_at(const Request& request) {
    try {
      const plan::Plan plan = search_(request);
      if (!plan.feasible || (found_ && plan.iteration_ns >= iteration_ns_)) return;
      iteration_ns_ = plan.iteration_ns;
      found_ = request;
    } catch (const ConfigError&) {
      // No plan is of this request, such as one with more stages than blocks.
    }
  }

  [[nodiscard]] const std::optional<Request>& request() const { return found_; }

 private:
  const Search& search_;
  int64_t iteration_ns_ = 0;
  std::optional<Request> found_;
};

Request with_replicas(Request request, const Allowed& allowed, const Replicas& replicas) {
  request.micro_batches = numbers_with_rows(request, replicas, allowed.least_rows);
  request.force.stages = static_cast<int>(replicas.size());
  request.force.replicas = replicas;
  return request;
}

/// Requests of which one has the fastest plan of `stages` that is allowed as its answer.
void look_at_stages(const Request& request, const Allowed& allowed, int ranks, int stages,
                    Fastest& fastest) {
  if (allowed.least_rows == 1 && !allowed.powers_of_two) {
    Request forced = request;
    forced.force.stages = stages;
    fastest.look_at(forced);
    return;
  }
  const std::vector<Replicas> ways = request.force.replicas
                                         ? std::vector<Replicas>{*request.force.replicas}
                                         : ways_to_share_out(ranks, stages);
  for (const Replicas& replicas : ways) {
    if (!allows(allowed, replicas)) continue;
    const Request forced = with_replicas(request, allowed, replicas);
    if (!forced.micro_batches.empty()) fastest.look_at(forced);
  }
}

}  // namespace

Request narrowed(const Request& request, const Allowed& allowed, const plan::Plan& plan, int ranks,
                 const Search& search) {
  if (allowed == Allowed() || !plan.feasible) return request;
  const Arrangement own = arrangement_of(plan);
  const bool has_rows =
      fewest_rows(request, own.replicas, plan.micro_batches) >= allowed.least_rows;
  if (!allowed.fewest_stages && allows(allowed, own.replicas) && has_rows) {
    Request same = with_replicas(request, allowed, own.replicas);
    same.force.schedule = own.schedule;
    if (own.schedule == plan::Schedule::interleaved) same.force.interleave = own.interleave;
    return same;
  }
  std::optional<int> forced = request.force.stages;
  if (request.force.replicas) forced = static_cast<int>(request.force.replicas->size());
  Fastest fastest(search);
  for (int stages = forced.value_or(1); stages <= forced.value_or(ranks); ++stages) {
    look_at_stages(request, allowed, ranks, stages, fastest);
    if (fastest.request() && allowed.fewest_stages) break;
  }
  if (fastest.request()) return *fastest.request();
  throw InfeasibleError(fmt::format(
      "no plan fits with min_pipeline_bs = {}, limit_dev_num_pot = {} and dp_search_all = {}",
      allowed.least_rows, allowed.powers_of_two ? "True" : "False",
      allowed.fewest_stages ? "False" : "True"));
}

}  // namespace rannc::partition
