#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "partition/evaluate/detail.h"

// Section 5 of docs/planner-files.md, "Gradient reduction".
namespace rannc::partition::evaluation {
namespace {

using plan::Rank;
using Ranks = std::set<Rank>;

/// Gradients that are reduced once over the union of the ranks of several stages.
struct TiedSet {
  Ranks ranks;
  double bytes = 0;
};

double gradient_bytes(const Layout& layout, uint32_t param) {
  const cost::ProfileParam& found = layout.profile.params[param];
  return found.trainable ? found.bytes * layout.request.gradient_bytes_per_param_byte : 0;
}

Ranks rank_set(const Layout& layout, const std::vector<size_t>& stages) {
  Ranks ranks;
  for (size_t stage : stages) {
    ranks.insert(layout.ranks(stage).begin(), layout.ranks(stage).end());
  }
  return ranks;
}

/// Who reduces what, and how long a ring over a group of ranks takes.
class Reductions {
 public:
  explicit Reductions(const Layout& layout) : layout_(layout), own_(layout.stages()) {
    std::vector<std::set<size_t>> users(layout.profile.params.size());
    for (uint32_t node = 0; node < layout.profile.nodes.size(); ++node) {
      for (uint32_t param : layout.profile.nodes[node].params) {
        users[param].insert(layout.stage_of[node]);
      }
    }
    for (uint32_t param = 0; param < users.size(); ++param) {
      const double bytes = gradient_bytes(layout, param);
      if (users[param].empty() || bytes == 0) continue;
      if (users[param].size() == 1) {
        own_[*users[param].begin()] += bytes;
        continue;
      }
      const std::vector<size_t> stages(users[param].begin(), users[param].end());
      TiedSet& set = tied_[stages];
      set.ranks = rank_set(layout, stages);
      set.bytes += bytes;
    }
    count_groups_per_host();
  }

  [[nodiscard]] double own_bytes(size_t stage) const { return own_[stage]; }
  /// In lexicographic order of the ascending lists of stages.
  [[nodiscard]] const std::map<std::vector<size_t>, TiedSet>& tied() const { return tied_; }

  [[nodiscard]] double ring_ns(const Ranks& ranks, double bytes) const {
    const auto r = static_cast<double>(ranks.size());
    if (ranks.size() == 1) return 0;
    const bool one_host = hosts(ranks).size() == 1;
    const cost::Link& link = one_host ? layout_.cluster.intra_host : layout_.cluster.inter_host;
    const double bandwidth = link.bandwidth_bytes_per_s / (one_host ? 1 : contention(ranks));
    return 2 * (r - 1) / r * bytes / bandwidth * 1e9 + 2 * (r - 1) * link.latency_ns;
  }

 private:
  [[nodiscard]] std::set<int> hosts(const Ranks& ranks) const {
    std::set<int> found;
    for (Rank rank : ranks) found.insert(layout_.cluster.host_of(rank));
    return found;
  }

  void count_groups_per_host() {
    std::set<Ranks> groups;
    for (size_t stage = 0; stage < own_.size(); ++stage) {
      if (own_[stage] > 0) groups.insert(rank_set(layout_, {stage}));
    }
    for (const auto& [stages, set] : tied_) groups.insert(set.ranks);
    for (const Ranks& group : groups) {
      const std::set<int> touched = hosts(group);
      if (touched.size() == 1) continue;
      for (int host : touched) ++groups_on_host_[host];
    }
  }

  /// By how much the groups that share the network cards of a host slow each other down.
  [[nodiscard]] double contention(const Ranks& ranks) const {
    int most = 0;
    for (int host : hosts(ranks)) {
      const auto found = groups_on_host_.find(host);
      if (found != groups_on_host_.end()) most = std::max(most, found->second);
    }
    return std::max(1.0, static_cast<double>(most) / layout_.cluster.links_per_host);
  }

  const Layout& layout_;
  std::vector<double> own_;  // [stage] gradient bytes of parameters that only it uses
  std::map<std::vector<size_t>, TiedSet> tied_;
  std::map<int, int> groups_on_host_;  // groups that span hosts and reduce something
};

}  // namespace

double evaluate_reductions(const Layout& layout, const std::vector<double>& last_backward,
                           const std::vector<double>& gradient_ns,
                           std::vector<StageEvaluation>& stages) {
  const Reductions reductions(layout);
  const int buckets = layout.request.reduction_buckets;

  // Stages of one rank group reduce one after the other: who ends first goes first.
  std::vector<size_t> order(layout.stages());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t stage) { return last_backward[stage]; });

  double latest = 0;
  std::vector<double> group_free(layout.groups, 0);
  std::vector<double> stage_free = last_backward;
  for (size_t stage : order) {
    const double bytes = reductions.own_bytes(stage);
    if (bytes == 0) continue;
    const double bucket_ns = reductions.ring_ns(rank_set(layout, {stage}), bytes / buckets);
    double& free = group_free[layout.group_of(stage)];
    for (int k = 1; k <= buckets; ++k) {
      const double ready =
          last_backward[stage] - gradient_ns[stage] * (1 - static_cast<double>(k) / buckets);
      free = std::max(free, ready) + bucket_ns;
    }
    stages[stage].reduce_ns = buckets * bucket_ns;
    stage_free[stage] = std::max(stage_free[stage], free);
    latest = std::max(latest, free);
  }

  for (const auto& [members, set] : reductions.tied()) {
    double start = 0;
    for (size_t stage : members) start = std::max(start, stage_free[stage]);
    const double end = start + reductions.ring_ns(set.ranks, set.bytes);
    for (size_t stage : members) stage_free[stage] = end;
    latest = std::max(latest, end);
  }
  return latest;
}

}  // namespace rannc::partition::evaluation
