#include "partition/problem/search_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "partition/problem/state_bytes.h"
#include "rannc/partition/evaluate.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

/// The most micro-batches that the planner tries.
/// tuned by: a bound on the time of planning: assessing two stages takes 10 ms then (`rannc plan`).
/// without it: every simulation of such a plan takes seconds, and a search takes thousands.
constexpr int64_t kMostMicroBatches = int64_t{1} << 18;

std::vector<int64_t> micro_batch_counts(const Request& request, int most_stages) {
  if (request.global_batch < 1) {
    throw ConfigError(
        fmt::format("global_batch is {}, but must be at least 1.\n  Try a batch with a "
                    "row.",
                    request.global_batch));
  }
  std::vector<int64_t> result = allowed_micro_batches(request);
  if (request.force.micro_batches) result = {*request.force.micro_batches};
  std::ranges::sort(result);
  result.erase(std::unique(result.begin(), result.end()), result.end());
  const int64_t smallest = result.front();
  const int64_t most = std::min(kMostMicroBatches, kMostTurns / most_stages);
  std::erase_if(result, [&](int64_t m) { return m > request.global_batch; });
  if (!result.empty() && result.front() > most) {
    throw ConfigError(fmt::format(
        "{} micro-batches in up to {} stages are more than can be simulated (at most {}).\n  Try "
        "fewer micro-batches.",
        result.front(), most_stages, most));
  }
  std::erase_if(result, [most](int64_t m) { return m > most; });
  if (result.empty()) {
    throw ConfigError(fmt::format(
        "{} micro-batches cannot be made of a global batch of {} rows: each needs a row.\n"
        "  Try at most {} micro-batches, or a larger batch.",
        smallest, request.global_batch, request.global_batch));
  }
  return result;
}

std::vector<plan::Schedule> allowed_schedules(const Request& request) {
  std::vector<plan::Schedule> result;
  for (const plan::Schedule schedule : request.schedules) {
    if (std::ranges::find(result, schedule) == result.end()) result.push_back(schedule);
  }
  if (request.force.schedule) result = {*request.force.schedule};
  const int interleave = request.force.interleave.value_or(0);
  std::erase_if(result, [&](plan::Schedule schedule) {
    const bool interleaved = schedule == plan::Schedule::interleaved;
    return interleaved ? interleave == 1 || request.max_interleave < 2 : interleave > 1;
  });
  if (result.empty()) {
    throw ConfigError(
        "the request allows no schedule.\n  Try \"schedules\": [\"gpipe\", \"1f1b\"].");
  }
  return result;
}

/// Shares must not be empty: micro_batches * replicas <= global batch for each stage.
void check_shares(const Request& request, const SearchSpace& space) {
  if (space.replicas.empty()) return;
  const int most = *std::ranges::max_element(space.replicas);
  const int64_t fewest = space.micro_batches.front();
  if (fewest * most <= request.global_batch) return;
  throw ConfigError(fmt::format(
      "{} micro-batches on {} replicas need {} rows, but the global batch has {}: a replica would "
      "get no row.\n  Try micro_batches <= {}, replicas <= {}, or a larger batch.",
      fewest, most, fewest * most, request.global_batch,
      std::max<int64_t>(1, request.global_batch / most),
      std::max<int64_t>(1, request.global_batch / fewest)));
}

}  // namespace

SearchSpace search_space(const Request& request, const cost::Cluster& cluster,
                         const PlannerOptions& options) {
  SearchSpace space;
  space.schedules = allowed_schedules(request);
  space.one_replica = options.one_replica;
  if (std::ranges::find(space.schedules, plan::Schedule::interleaved) != space.schedules.end()) {
    space.most_chunks = request.max_interleave;
    if (request.force.interleave && *request.force.interleave > 1) {
      space.fewest_chunks = space.most_chunks = *request.force.interleave;
    }
  }
  space.stages = request.force.stages.value_or(0);
  if (request.force.replicas) space.replicas = *request.force.replicas;

  const std::string list = fmt::format("[{}]", fmt::join(space.replicas, ", "));
  if (request.force.replicas) {
    if (space.replicas.empty() || *std::ranges::min_element(space.replicas) < 1) {
      throw ConfigError(
          fmt::format("forced replicas {}: each stage needs at least one rank.\n"
                      "  Try a list of numbers >= 1, one per stage.",
                      list));
    }
    const auto listed = static_cast<int>(space.replicas.size());
    if (space.stages != 0 && space.stages != listed) {
      throw ConfigError(fmt::format(
          "{} stages are forced, but replicas {} are of {}.\n  Try a list of {} numbers, or leave "
          "out the number of stages.",
          space.stages, list, listed, space.stages));
    }
    space.stages = listed;
    const int sum = std::accumulate(space.replicas.begin(), space.replicas.end(), 0);
    if (sum > cluster.ranks() && !space.interleaves()) {
      throw ConfigError(fmt::format(
          "forced replicas {} need {} ranks, but there are {}.\n  Try fewer replicas, or start {} "
          "ranks.",
          list, sum, cluster.ranks(), sum));
    }
    if (space.one_replica && *std::ranges::max_element(space.replicas) > 1) {
      throw ConfigError(fmt::format(
          "forced replicas {}, but rows of this model interact, so a micro-batch cannot be shared "
          "by replicas.\n  Try 1 replica per stage.",
          list));
    }
  }
  if (space.stages > cluster.ranks() && !space.interleaves()) {
    throw ConfigError(
        fmt::format("{} stages are forced, but there are only {} ranks, and each stage needs its "
                    "own.\n  Try at "
                    "most {} stages.",
                    space.stages, cluster.ranks(), cluster.ranks()));
  }
  const int most_stages =
      space.stages > 0 ? space.stages : cluster.ranks() * std::max(1, space.most_chunks);
  space.micro_batches = micro_batch_counts(request, most_stages);
  check_shares(request, space);
  // Counts that the forced replicas cannot share out drop out of the list.
  if (!space.replicas.empty()) {
    const int most = *std::ranges::max_element(space.replicas);
    std::erase_if(space.micro_batches, [&](int64_t m) { return m * most > request.global_batch; });
  }
  return space;
}

void check_stage_count(const SearchSpace& space, size_t blocks) {
  if (static_cast<size_t>(space.stages) <= blocks) return;
  throw ConfigError(fmt::format(
      "{} stages are forced, but the model has only {} {} that can be cut apart.\n  Try at most {} "
      "stages.",
      space.stages, blocks, blocks == 1 ? "block" : "blocks", blocks));
}

bool respects_pins(const SearchSpace& space, const Draft& draft) {
  for (size_t block = 0; block < space.pins.size(); ++block) {
    const int pin = space.pins[block];
    if (pin == SearchSpace::kFree) continue;
    if (draft.stage_of[block] != (pin == SearchSpace::kLastStage ? draft.stages() - 1 : pin)) {
      return false;
    }
  }
  return true;
}

int fewest_stages(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                  const Request& request) {
  double bytes = 0;
  for (const cost::ProfileParam& param : profile.params) {
    StateBytes state = state_of(param, request);
    state.optimizer_bytes *= optimizer_share(request, cluster.ranks());
    bytes += state.bytes();
  }
  const double device = cluster.device_memory_bytes * (1 - request.memory_margin);
  return std::max(1, static_cast<int>(std::min(bytes / std::max(device, 1.0), 1e6)));
}

bool replicas_repeat(const SearchSpace& space, int groups) {
  for (size_t k = static_cast<size_t>(groups); k < space.replicas.size(); ++k) {
    if (space.replicas[k] != space.replicas[k - static_cast<size_t>(groups)]) return false;
  }
  return true;
}

}  // namespace rannc::partition
