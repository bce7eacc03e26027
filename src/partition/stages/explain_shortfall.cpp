#include "partition/stages/explain_shortfall.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "partition/stages/stage_costs.h"
#include "partition/stages/stage_solver.h"
#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::partition {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// To say why nothing fits, a table has a cell for each block and each number of ranks (or of units
/// of ranks, beyond this); of more blocks, only even cuts are looked at.
/// tuned by: a bound on the time of planning.
/// without it: an infeasible giant is explained after minutes.
constexpr int kExplainedPositions = 64;
constexpr int kExplainedBlocks = 128;

struct ClosestPlan {
  plan::Schedule schedule = plan::Schedule::gpipe;
  int64_t micro_batches = 1;
  std::vector<StageChoice> stages;  ///< ranks in steps of the grid
};

int positions(const RangeCosts& ranges) {
  return ranges.blocks() > kExplainedBlocks ? 1024 : kExplainedPositions;
}

Grid coarse_grid(const cost::Cluster& cluster, const SearchSpace& space, int most) {
  if (!space.replicas.empty() || space.one_replica) return {};
  int unit = (cluster.ranks() + most - 1) / most;
  while (cluster.ranks() % unit != 0) ++unit;
  return {1, unit};
}

/// The stages behind a border; their largest peak is as small as it can be with so many stages.
struct State {
  double peak_bytes = kInfinity;
  int last = 0;
  int replicas = 0;
  bool recompute = false;
};

/// Table over (border, ranks used behind it, stages behind it).
class PeakSolver {
 public:
  PeakSolver(const StageCosts& costs, plan::Schedule schedule, const SearchSpace& space)
      : costs_(costs),
        schedule_(schedule),
        space_(space),
        blocks_(costs.blocks()),
        ranks_(costs.ranks()),
        most_stages_(space.stages > 0 ? space.stages : std::min(blocks_, ranks_)),
        states_(static_cast<size_t>(blocks_ + 1) * static_cast<size_t>(ranks_ + 1) *
                static_cast<size_t>(most_stages_ + 1)) {}

  ClosestPlan run() {
    at(blocks_, 0, 0).peak_bytes = 0;
    const int most_replicas = space_.one_replica ? 1 : costs_.max_replicas();
    for (int first = blocks_ - 1; first >= 0; --first) {
      std::vector<RangeCosts::Walk> walks;
      for (int replicas = 1; replicas <= most_replicas; ++replicas) {
        walks.push_back(costs_.walk(first, replicas));
      }
      for (int last = first + 1; last <= blocks_; ++last) {
        for (int replicas = 1; replicas <= most_replicas; ++replicas) {
          extend(first, last, replicas, walks[static_cast<size_t>(replicas - 1)].to(last));
        }
      }
    }
    return trace();
  }

  double best_peak_bytes() const { return best_; }

 private:
  State& at(int border, int ranks, int stages) {
    return states_[(static_cast<size_t>(border) * static_cast<size_t>(ranks_ + 1) +
                    static_cast<size_t>(ranks)) *
                       static_cast<size_t>(most_stages_ + 1) +
                   static_cast<size_t>(stages)];
  }

  void extend(int first, int last, int replicas, const RangeCosts::Held& range) {
    for (int behind = 0; behind < most_stages_; ++behind) {
      const bool listed =
          space_.replicas.empty() ||
          space_.replicas[static_cast<size_t>(most_stages_ - 1 - behind)] == replicas;
      if (!listed) continue;
      const int64_t held = schedule_ == plan::Schedule::gpipe
                               ? costs_.micro_batches()
                               : std::min<int64_t>(costs_.micro_batches(), behind + 1);
      State stage{.peak_bytes = kInfinity, .last = last, .replicas = replicas};
      for (const bool recompute : {false, true}) {
        const Recompute demanded = costs_.recompute();
        if (demanded == (recompute ? Recompute::never : Recompute::always)) continue;
        const double peak = costs_.peak_bytes(first, last, replicas, recompute, held, range);
        if (peak >= stage.peak_bytes) continue;
        stage.peak_bytes = peak;
        stage.recompute = recompute;
      }
      for (int used = 0; used + replicas <= ranks_; ++used) {
        const double peak = std::max(at(last, used, behind).peak_bytes, stage.peak_bytes);
        State& here = at(first, used + replicas, behind + 1);
        if (peak >= here.peak_bytes) continue;
        here = stage;
        here.peak_bytes = peak;
      }
    }
  }

  ClosestPlan trace() {
    ClosestPlan result{schedule_, costs_.micro_batches(), {}};
    int ranks = 0, stages = 0;
    const int fewest = space_.stages > 0 ? space_.stages : 1;
    for (int s = fewest; s <= most_stages_; ++s) {
      for (int r = 1; r <= ranks_; ++r) {
        if (at(0, r, s).peak_bytes >= best_) continue;
        best_ = at(0, r, s).peak_bytes;
        ranks = r;
        stages = s;
      }
    }
    int first_rank = ranks_ - ranks;
    for (int border = 0; stages > 0 && border < blocks_;) {
      const State& here = at(border, ranks, stages);
      result.stages.push_back({border, here.last, here.replicas, first_rank, here.recompute});
      first_rank += here.replicas;
      ranks -= here.replicas;
      --stages;
      border = here.last;
    }
    return result;
  }

  const StageCosts& costs_;
  plan::Schedule schedule_;
  const SearchSpace& space_;
  int blocks_, ranks_, most_stages_;
  std::vector<State> states_;
  double best_ = kInfinity;
};

/// For a problem whose table would be too large: stages of equally many blocks and equally many
/// ranks, in the number (powers of two, or as many as there can be) whose fullest comes closest.
ClosestPlan even_arrangement(const RangeCosts& ranges, const cost::Cluster& cluster,
                             const Request& request, const SearchSpace& space,
                             plan::Schedule schedule) {
  ClosestPlan best;
  double best_peak = kInfinity;
  const Grid grid = coarse_grid(cluster, space, positions(ranges));
  for (const int64_t m : space.micro_batches) {
    const StageCosts costs(ranges, cluster, request, m, grid);
    const int most = std::min(costs.blocks(), costs.ranks());
    for (int stages = space.stages > 0 ? std::min(space.stages, most) : 1; stages <= most;
         stages = stages == most ? most + 1 : std::min(2 * stages, most)) {
      const int replicas =
          space.one_replica ? 1 : std::min(costs.max_replicas(), costs.ranks() / stages);
      if (replicas < 1) continue;
      ClosestPlan here{schedule, m, {}};
      double peak = 0;
      for (int k = 0; k < stages; ++k) {
        StageChoice stage{k * costs.blocks() / stages, (k + 1) * costs.blocks() / stages, replicas,
                          k * replicas, request.recompute == Recompute::always};
        const int64_t held = in_flight(schedule, m, stages, k);
        const auto bytes = [&](bool recompute) {
          return costs.peak_bytes(stage.first, stage.last, replicas, recompute, held);
        };
        if (is_free(request.recompute)) stage.recompute = bytes(true) < bytes(false);
        peak = std::max(peak, bytes(stage.recompute));
        here.stages.push_back(stage);
      }
      if (peak >= best_peak) continue;
      best_peak = peak;
      best = std::move(here);
      if (space.stages > 0) break;
    }
  }
  return best;
}

/// The arrangement whose fullest stage comes closest to fitting, over all allowed numbers of
/// micro-batches. Ties: the fewest stages, then the fewest micro-batches.
ClosestPlan closest_plan(const RangeCosts& ranges, const cost::Cluster& cluster,
                         const Request& request, const SearchSpace& space) {
  // 1F1B never holds more micro-batches than fill-drain.
  const bool has_1f1b =
      std::ranges::find(space.schedules, plan::Schedule::one_f_one_b) != space.schedules.end();
  const plan::Schedule schedule = has_1f1b ? plan::Schedule::one_f_one_b : plan::Schedule::gpipe;
  ClosestPlan best;
  double best_peak = kInfinity;
  if (ranges.blocks() > kExplainedBlocks) {
    return even_arrangement(ranges, cluster, request, space, schedule);
  }
  for (const int64_t m : space.micro_batches) {
    const StageCosts costs(ranges, cluster, request, m,
                           coarse_grid(cluster, space, positions(ranges)));
    PeakSolver solver(costs, schedule, space);
    ClosestPlan here = solver.run();
    if (solver.best_peak_bytes() >= best_peak) continue;
    best_peak = solver.best_peak_bytes();
    best = std::move(here);
  }
  return best;
}

/// What needs too much.
struct Fullest {
  StageChoice stage;
  StageMemory memory;
  int64_t rows = 0;
  std::string place;  ///< where it was met, before the name of the nodes
};

/// The block that needs most of the memory even alone, under the choices that suit it best; its
/// memory may be less than a device offers.
Fullest largest_block(const RangeCosts& ranges, const cost::Cluster& cluster,
                      const Request& request, const SearchSpace& space) {
  Fullest largest;
  std::vector<StageCosts> counts;
  for (const int64_t m : space.micro_batches) counts.emplace_back(ranges, cluster, request, m);
  for (int block = 0; block < ranges.blocks(); ++block) {
    Fullest smallest;
    double peak = kInfinity;
    for (const StageCosts& costs : counts) {
      // The share is smallest, and so are the bytes, on the most replicas.
      const int replicas = space.one_replica ? 1 : costs.max_replicas();
      for (const bool recompute : {false, true}) {
        if (request.recompute == (recompute ? Recompute::never : Recompute::always)) continue;
        const StageMemory memory = costs.memory(block, block + 1, replicas, recompute, 1);
        if (memory.peak_bytes() >= peak) continue;
        peak = memory.peak_bytes();
        smallest = {{block, block + 1, replicas, 0, recompute}, memory, costs.rows(replicas), ""};
      }
    }
    if (peak > largest.memory.peak_bytes()) largest = smallest;
  }
  largest.place = "even alone in a stage, ";
  return largest;
}

Fullest fullest_stage(const ClosestPlan& arrangement, const StageCosts& costs) {
  Fullest fullest;
  const auto count = static_cast<int>(arrangement.stages.size());
  for (int k = 0; k < count; ++k) {
    const StageChoice& stage = arrangement.stages[static_cast<size_t>(k)];
    const StageMemory memory =
        costs.memory(stage.first, stage.last, stage.replicas, stage.recompute,
                     in_flight(arrangement.schedule, arrangement.micro_batches, count, k));
    if (k > 0 && memory.peak_bytes() <= fullest.memory.peak_bytes()) continue;
    fullest = {
        stage, memory, costs.rows(stage.replicas),
        fmt::format("in the closest one ({} stage{}, {}, {} micro-batch{}), stage {} with ", count,
                    count == 1 ? "" : "s", plan::name(arrangement.schedule),
                    arrangement.micro_batches, arrangement.micro_batches == 1 ? "" : "es", k)};
  }
  return fullest;
}

std::string nodes_of(const cost::GraphProfile& profile,
                     const std::vector<std::vector<uint32_t>>& blocks, const StageChoice& stage) {
  std::vector<uint32_t> nodes;
  for (int block = stage.first; block < stage.last; ++block) {
    const std::vector<uint32_t>& part = blocks[static_cast<size_t>(block)];
    nodes.insert(nodes.end(), part.begin(), part.end());
  }
  const auto [front, back] = std::ranges::minmax(nodes);
  if (front == back) return fmt::format("node '{}'", profile.nodes[front].name);
  return fmt::format("{} nodes ('{}' to '{}')", nodes.size(), profile.nodes[front].name,
                     profile.nodes[back].name);
}

std::string advice(const Request& request, const SearchSpace& space, const cost::Cluster& cluster,
                   bool parameters_dominate, bool alone) {
  std::vector<std::string> ways;
  if (parameters_dominate) {
    if (!alone) ways.push_back(fmt::format("more ranks than {}", cluster.ranks()));
    ways.push_back("an optimizer with less state");
  } else {
    ways.push_back("a smaller batch size");
    if (space.micro_batches.back() * 2 <= request.global_batch) {
      ways.push_back(fmt::format("more micro-batches than {}", space.micro_batches.back()));
    }
    if (request.recompute == Recompute::never) {
      ways.push_back("recompute = \"auto\" instead of \"never\"");
    }
    if (space.schedules == std::vector{plan::Schedule::gpipe}) {
      ways.push_back("the schedule \"1f1b\"");
    }
  }
  if (space.stages > 0 && !alone) ways.push_back("leaving the number of stages free");
  ways.push_back("devices with more memory");
  std::string text = "  Try ";
  for (size_t k = 0; k < ways.size(); ++k) {
    if (k > 0) text += k + 1 < ways.size() ? ", " : k > 1 ? ", or " : " or ";
    text += ways[k];
  }
  return text + ".";
}

bool only_interleaves(const SearchSpace& space) {
  return space.schedules == std::vector{plan::Schedule::interleaved};
}

/// Whether some numbers of groups, of their stages and of micro-batches go together.
bool can_interleave(int blocks, const cost::Cluster& cluster, const SearchSpace& space) {
  for (int v = space.fewest_chunks; v <= space.most_chunks; ++v) {
    for (int p = 2; p <= cluster.ranks() && v * p <= blocks; ++p) {
      if (space.stages > 0 && space.stages != v * p) continue;
      if (!space.replicas.empty() && !replicas_repeat(space, p)) continue;
      for (const int64_t m : space.micro_batches) {
        if (m % p == 0) return true;
      }
    }
  }
  return false;
}

std::string cannot_interleave(int blocks, const cost::Cluster& cluster, const SearchSpace& space) {
  const int ranks = cluster.ranks();
  const std::string stages =
      space.stages > 0 ? fmt::format("{} stages are forced", space.stages)
                       : fmt::format("{} block{} can be cut apart", blocks, blocks == 1 ? "" : "s");
  return fmt::format(
      "no plan exists: only the schedule 'interleaved' is allowed, which needs groups of ranks, 2 "
      "or more, each with {} stages, and a multiple of the number of groups as micro-batches. "
      "There {} {} rank{}, {}, and the numbers of micro-batches are {}.\n"
      "  Try the schedule \"1f1b\", too, or other numbers of micro-batches, stages or ranks.",
      space.most_chunks == space.fewest_chunks
          ? fmt::format("{}", space.most_chunks)
          : fmt::format("{} to {}", space.fewest_chunks, space.most_chunks),
      ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s", stages,
      fmt::join(space.micro_batches, ", "));
}

/// The request leaves no stages at all, whatever their memory.
std::string nothing_to_try(const Request& request, const SearchSpace& space,
                           const cost::Cluster& cluster) {
  if (space.interleaves()) {
    return fmt::format(
        "no plan was found, though one may exist: what the request demands leaves only interleaved "
        "plans for {} ranks, and of all that were searched none fits.\n"
        "  Try other micro-batch counts, schedules or forced values.",
        cluster.ranks());
  }
  return fmt::format(
      "no plan exists: what the request demands leaves nothing for {} ranks and a global batch of "
      "{} rows ({} micro-batch count{} allowed).\n"
      "  Try other micro-batch counts, schedules or forced values.",
      cluster.ranks(), request.global_batch, space.micro_batches.size(),
      space.micro_batches.size() == 1 ? "" : "s");
}

}  // namespace

std::string explain_shortfall(const cost::GraphProfile& profile,
                              const std::vector<std::vector<uint32_t>>& blocks,
                              const RangeCosts& ranges, const cost::Cluster& cluster,
                              const Request& request, const SearchSpace& space) {
  const double available = cluster.device_memory_bytes * (1 - request.memory_margin);
  Fullest fullest = largest_block(ranges, cluster, request, space);
  const bool alone = fullest.memory.peak_bytes() > available;
  if (!alone && only_interleaves(space)) {
    return can_interleave(ranges.blocks(), cluster, space)
               ? nothing_to_try(request, space, cluster)
               : cannot_interleave(ranges.blocks(), cluster, space);
  }
  if (!alone) {
    const ClosestPlan closest = closest_plan(ranges, cluster, request, space);
    if (closest.stages.empty()) return nothing_to_try(request, space, cluster);
    fullest = fullest_stage(closest, StageCosts(ranges, cluster, request, closest.micro_batches,
                                                coarse_grid(cluster, space, positions(ranges))));
  }
  const StageMemory& memory = fullest.memory;
  if (memory.peak_bytes() <= available) {
    const bool pinned =
        std::ranges::any_of(space.pins, [](int stage) { return stage != SearchSpace::kFree; });
    return fmt::format(
        "no plan was found, though one may exist: {}{}{} needs about {} at {} row{}{}, and a "
        "device offers {} (after the safety margin), but of all that was searched nothing fits{}.\n"
        "  Try {}other numbers of stages and micro-batches, or fewer forced values.",
        pinned ? "without pins, " : "", fullest.place, nodes_of(profile, blocks, fullest.stage),
        human_bytes(memory.peak_bytes()), fullest.rows, fullest.rows == 1 ? "" : "s",
        fullest.stage.recompute ? ", recomputed" : "", human_bytes(available),
        pinned ? " and has the pinned modules where they shall be" : "",
        pinned ? "other pins, " : "");
  }
  const double parameters = memory.param_bytes + memory.gradient_bytes + memory.optimizer_bytes;
  return fmt::format(
      "no plan fits: {}{} needs {} at {} row{}{}, but a device offers {} (after the safety "
      "margin).\n"
      "  Needed: parameters {}, gradients {}, optimizer {}, activations {}, buffers {}, workspace "
      "{}.\n{}",
      fullest.place, nodes_of(profile, blocks, fullest.stage), human_bytes(memory.peak_bytes()),
      fullest.rows, fullest.rows == 1 ? "" : "s", fullest.stage.recompute ? ", recomputed" : "",
      human_bytes(available), human_bytes(memory.param_bytes), human_bytes(memory.gradient_bytes),
      human_bytes(memory.optimizer_bytes), human_bytes(memory.activation_bytes),
      human_bytes(memory.buffer_bytes), human_bytes(memory.workspace_bytes),
      advice(request, space, cluster, parameters > memory.peak_bytes() / 2, alone));
}

}  // namespace rannc::partition
