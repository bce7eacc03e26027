#include "rannc/partition/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "partition/evaluate/detail.h"
#include "rannc/util/human.h"

namespace rannc::partition {
namespace {

constexpr double kNsPerHour = 3.6e12;

}  // namespace

namespace evaluation {
namespace {

int64_t ceil_divide(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// Collects what is wrong with a plan. `sound` stays true while time and memory have a meaning.
class Checker {
 public:
  Checker(Layout& layout, std::vector<std::string>& problems)
      : layout_(layout), problems_(problems) {}

  [[nodiscard]] bool sound() const { return sound_; }

  void counts() {
    const plan::Plan& plan = layout_.plan;
    if (!plan.feasible) broken(fmt::format("the plan says that none is feasible: {}", plan.reason));
    if (plan.stages.empty()) broken("the plan has no stages");
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      const plan::Axes& axes = plan.stages[stage].axes;
      if (axes.places() == 1) continue;
      broken(
          fmt::format("stage {} has the mesh [{}, {}], of ranks that compute layers together: only "
                      "a deployed plan has one, and it has no price from files",
                      stage, axes.x, axes.y));
    }
    if (plan.micro_batches < 1) {
      broken(fmt::format("micro_batches is {}, but must be at least 1", plan.micro_batches));
    }
    if (layout_.request.global_batch < 1) broken("global_batch must be at least 1");
    if (plan.micro_batches >
        kMostTurns / static_cast<int64_t>(std::max<size_t>(1, plan.stages.size()))) {
      broken(
          fmt::format("{} micro-batches in {} stages are too many to simulate; at most {} in all",
                      plan.micro_batches, plan.stages.size(), kMostTurns));
    }
  }

  void nodes() {
    constexpr uint32_t kNowhere = UINT32_MAX;
    const cost::GraphProfile& profile = layout_.profile;
    std::unordered_map<std::string_view, uint32_t> index;
    for (uint32_t i = 0; i < profile.nodes.size(); ++i) index.emplace(profile.nodes[i].name, i);

    layout_.stage_of.assign(profile.nodes.size(), kNowhere);
    layout_.nodes.resize(layout_.plan.stages.size());
    for (uint32_t stage = 0; stage < layout_.nodes.size(); ++stage) {
      for (const std::string& name : layout_.plan.stages[stage].nodes) {
        const auto found = index.find(name);
        if (found == index.end()) {
          broken(fmt::format("stage {} has node '{}', which the graph does not have", stage, name));
        } else if (layout_.stage_of[found->second] != kNowhere) {
          broken(fmt::format("node '{}' is in stage {} and again in stage {}", name,
                             layout_.stage_of[found->second], stage));
        } else {
          layout_.stage_of[found->second] = stage;
          layout_.nodes[stage].push_back(found->second);
        }
      }
      std::ranges::sort(layout_.nodes[stage]);
    }
    for (uint32_t i = 0; i < profile.nodes.size(); ++i) {
      if (layout_.stage_of[i] == kNowhere) {
        broken(fmt::format("node '{}' is in no stage", profile.nodes[i].name));
      }
    }
  }

  void segments() {
    std::unordered_map<std::string_view, uint32_t> index;
    for (uint32_t i = 0; i < layout_.profile.nodes.size(); ++i) {
      index.emplace(layout_.profile.nodes[i].name, i);
    }
    layout_.segment_of.assign(layout_.profile.nodes.size(), Layout::kRunsOnce);
    uint32_t segment = 0;
    for (uint32_t stage = 0; stage < layout_.nodes.size(); ++stage) {
      const std::vector<uint32_t>& nodes = layout_.nodes[stage];
      if (layout_.plan.stages[stage].recompute) {
        for (const uint32_t node : nodes) layout_.segment_of[node] = segment;
        ++segment;
      }
      size_t end = 0;  // of the segment before, in the stage
      for (const std::vector<std::string>& names : layout_.plan.stages[stage].segments) {
        std::vector<uint32_t> members;
        for (const std::string& name : names) {
          const auto found = index.find(name);
          if (found != index.end()) members.push_back(found->second);
        }
        std::ranges::sort(members);
        const auto first = members.empty() ? nodes.end() : std::ranges::find(nodes, members[0]);
        const auto place = static_cast<size_t>(first - nodes.begin());
        const bool follow = place >= end && place + names.size() <= nodes.size() &&
                            std::equal(members.begin(), members.end(), first);
        if (members.size() != names.size() || !follow) {
          broken(
              fmt::format("segment {} of stage {} has other nodes than consecutive ones of the "
                          "stage, behind those of the segment before",
                          &names - layout_.plan.stages[stage].segments.data(), stage));
          continue;
        }
        end = place + members.size();
        for (const uint32_t node : members) layout_.segment_of[node] = segment;
        ++segment;
      }
    }
  }

  void directions() {
    const auto& nodes = layout_.profile.nodes;
    for (uint32_t user = 0; user < nodes.size(); ++user) {
      for (const cost::ProfileUse& use : nodes[user].inputs) {
        if (use.is_input || layout_.stage_of[use.node] <= layout_.stage_of[user]) continue;
        broken(fmt::format("a value of '{}' in stage {} goes back to '{}' in stage {}",
                           nodes[use.node].name, layout_.stage_of[use.node], nodes[user].name,
                           layout_.stage_of[user]));
      }
    }
  }

  void node_groups() {
    std::unordered_map<std::string_view, uint32_t> first;
    const auto& nodes = layout_.profile.nodes;
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].group.empty()) continue;
      const auto [found, fresh] = first.emplace(nodes[i].group, i);
      const uint32_t stage = layout_.stage_of[found->second];
      if (fresh || stage == layout_.stage_of[i]) continue;
      wrong(fmt::format("group '{}' is torn: '{}' is in stage {}, '{}' in stage {}", nodes[i].group,
                        nodes[found->second].name, stage, nodes[i].name, layout_.stage_of[i]));
    }
  }

  void interleave() {
    const plan::Plan& plan = layout_.plan;
    layout_.groups = layout_.stages();
    if (plan.schedule != plan::Schedule::interleaved) {
      if (plan.interleave != 1) {
        wrong(fmt::format("interleave is {}, but schedule '{}' has 1", plan.interleave,
                          plan::name(plan.schedule)));
      }
      return;
    }
    const size_t stages = layout_.stages();
    const auto chunks = static_cast<size_t>(std::max(plan.interleave, 0));
    if (chunks < 2) return broken(fmt::format("interleave is {}; at least 2", plan.interleave));
    if (stages % chunks != 0 || stages / chunks < 2) {
      return broken(
          fmt::format("{} stages are not {} chunks of at least 2 groups", stages, plan.interleave));
    }
    layout_.groups = stages / chunks;
    if (plan.micro_batches % static_cast<int64_t>(layout_.groups) != 0) {
      broken(fmt::format("{} micro-batches are not a multiple of {} groups", plan.micro_batches,
                         layout_.groups));
    }
    for (size_t stage = layout_.groups; stage < stages; ++stage) {
      if (layout_.ranks(stage) != layout_.ranks(stage - layout_.groups)) {
        broken(fmt::format("stages {} and {} are one group, but list other ranks",
                           stage - layout_.groups, stage));
      }
    }
  }

  void ranks() {
    const int world = layout_.cluster.ranks();
    std::unordered_map<plan::Rank, size_t> owner;
    for (size_t stage = 0; stage < layout_.stages(); ++stage) {
      if (layout_.ranks(stage).empty()) broken(fmt::format("stage {} has no ranks", stage));
      if (stage >= layout_.groups) continue;  // compared with its group above
      for (plan::Rank rank : layout_.ranks(stage)) {
        if (rank < 0 || rank >= world) {
          broken(fmt::format("stage {} has rank {}, but the cluster has ranks 0 to {}", stage, rank,
                             world - 1));
        }
        const auto [found, fresh] = owner.emplace(rank, stage);
        if (fresh) continue;
        broken(found->second == stage ? fmt::format("stage {} lists rank {} twice", stage, rank)
                                      : fmt::format("rank {} is in stage {} and in stage {}", rank,
                                                    found->second, stage));
      }
    }
  }

  void shares() {
    const int64_t batch = layout_.request.global_batch;
    const int64_t count = layout_.plan.micro_batches;
    layout_.micro_rows = ceil_divide(batch, count);
    for (size_t stage = 0; stage < layout_.stages(); ++stage) {
      const int64_t replicas = layout_.mesh(stage).replicas();
      // Divided in two steps: the product of counts from a file could overflow.
      if (count > batch / replicas) {
        wrong(
            fmt::format("stage {}: {} micro-batches on {} ranks need a global batch of {}, not {}",
                        stage, count, replicas, static_cast<double>(count) * replicas, batch));
      }
      layout_.rows.push_back(static_cast<double>(ceil_divide(layout_.micro_rows, replicas)));
    }
  }

  void choices() {
    const plan::Plan& plan = layout_.plan;
    const Request& request = layout_.request;
    if (std::ranges::find(request.schedules, plan.schedule) == request.schedules.end()) {
      wrong(fmt::format("the request does not allow schedule '{}'", plan::name(plan.schedule)));
    }
    const std::vector<int64_t> allowed = allowed_micro_batches(request);
    if (std::ranges::find(allowed, plan.micro_batches) == allowed.end()) {
      wrong(fmt::format("the request does not allow {} micro-batches", plan.micro_batches));
    }
    if (plan.interleave > request.max_interleave) {
      wrong(fmt::format("interleave is {}, but the request allows at most {}", plan.interleave,
                        request.max_interleave));
    }
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      const bool recompute = plan.stages[stage].runs_again();
      if (recompute && request.recompute == Recompute::never) {
        wrong(fmt::format("stage {} recomputes, but the request says 'never'", stage));
      }
      if (!recompute && request.recompute == Recompute::always) {
        wrong(fmt::format("stage {} does not recompute, but the request says 'always'", stage));
      }
      const bool whole = plan.stages[stage].recompute;
      if (request.recompute == Recompute::stage && recompute && !whole) {
        wrong(fmt::format("stage {} recomputes in segments, but the request says 'stage'", stage));
      }
      if (request.recompute == Recompute::segments && whole) {
        wrong(
            fmt::format("stage {} recomputes as a whole, but the request says 'segments'", stage));
      }
    }
    forced();
  }

 private:
  void forced() {
    const plan::Plan& plan = layout_.plan;
    const Force& force = layout_.request.force;
    const auto differs = [&](std::string_view what, const auto& wanted, const auto& found) {
      if (wanted && *wanted != found) {
        wrong(fmt::format("the request forces {} = {}, the plan has {}", what, *wanted, found));
      }
    };
    differs("stages", force.stages, static_cast<int>(plan.stages.size()));
    differs("micro_batches", force.micro_batches, plan.micro_batches);
    differs("interleave", force.interleave, plan.interleave);
    if (force.schedule && *force.schedule != plan.schedule) {
      wrong(fmt::format("the request forces schedule = '{}', the plan has '{}'",
                        plan::name(*force.schedule), plan::name(plan.schedule)));
    }
    if (!force.replicas) return;
    std::vector<int> replicas;
    for (const plan::Stage& stage : plan.stages) replicas.push_back(mesh_of(stage).replicas());
    if (replicas != *force.replicas) {
      wrong(fmt::format("the request forces replicas = [{}], the plan has [{}]",
                        fmt::join(*force.replicas, ", "), fmt::join(replicas, ", ")));
    }
  }

  void wrong(std::string problem) { problems_.push_back(std::move(problem)); }
  void broken(std::string problem) {
    sound_ = false;
    wrong(std::move(problem));
  }

  Layout& layout_;
  std::vector<std::string>& problems_;
  bool sound_ = true;
};

}  // namespace

std::optional<Layout> resolve(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                              const Request& request, const plan::Plan& plan,
                              std::vector<std::string>& problems) {
  Layout layout{profile, cluster, request, plan, {}, {}, 0, {}, 0, {}};
  Checker checker(layout, problems);
  checker.counts();
  if (!checker.sound()) return std::nullopt;
  checker.nodes();
  if (checker.sound()) {
    checker.directions();
    checker.segments();
    checker.node_groups();
  }
  checker.interleave();
  checker.ranks();
  checker.choices();
  if (!checker.sound()) return std::nullopt;
  checker.shares();
  return layout;
}

}  // namespace evaluation

Evaluation evaluate(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                    const Request& request, const plan::Plan& plan) {
  Evaluation evaluation;
  const std::optional<evaluation::Layout> layout =
      evaluation::resolve(profile, cluster, request, plan, evaluation.problems);
  if (!layout) return evaluation;
  const auto orders = evaluation::compute_orders(*layout);
  evaluation.stages.resize(layout->stages());
  const std::vector<double> gradient_ns = evaluate_compute(*layout, evaluation.stages);
  const std::vector<evaluation::Transfer> sent = transfers(*layout);
  for (const evaluation::Transfer& transfer : sent) {
    evaluation.transfers.push_back({transfer.from, transfer.to, transfer.bytes, transfer.forward_ns,
                                    transfer.backward_ns, transfer.has_backward});
  }
  const std::vector<double> last_backward =
      simulate_groups(*layout, orders, sent, evaluation.stages);
  evaluation.iteration_ns =
      std::max(std::ranges::max(last_backward),
               evaluate_reductions(*layout, last_backward, gradient_ns, evaluation.stages));
  evaluate_memory(*layout, orders, evaluation.stages);
  size_t ranks = 0;
  for (size_t group = 0; group < layout->groups; ++group) ranks += layout->ranks(group).size();
  evaluation.iteration_price = cluster.price_per_device_hour * static_cast<double>(ranks) *
                               evaluation.iteration_ns / kNsPerHour;

  const double limit = cluster.device_memory_bytes * (1 - request.memory_margin);
  for (size_t stage = 0; stage < evaluation.stages.size(); ++stage) {
    const double peak = evaluation.stages[stage].peak_bytes;
    if (peak <= limit) continue;
    evaluation.problems.push_back(
        fmt::format("stage {} needs {} on each rank, but a device offers {}", stage,
                    human_bytes(peak), human_bytes(limit)));
  }
  return evaluation;
}

}  // namespace rannc::partition
