#include "partition/search/enumerate.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "partition/blocks/down_sets.h"
#include "partition/problem/slowdown.h"

namespace rannc::partition {
namespace {

using Mask = uint32_t;  // set of blocks

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Times that differ by less are equal: sums of the same numbers in another order.
constexpr double kRoundedDown = 1 - 1e-12;

/// The smaller first; empty when there are too many.
std::vector<Mask> down_set_masks(const BlockModel& model) {
  std::vector<Mask> masks;
  for (const BlockSet& set : down_sets(model, kMostDownSets)) {
    masks.push_back(static_cast<Mask>(set.to_ulong()));
  }
  std::ranges::sort(masks, [](Mask a, Mask b) {
    return std::pair(std::popcount(a), a) < std::pair(std::popcount(b), b);
  });
  return masks;
}

class Enumeration {
 public:
  Enumeration(Assessor& assessor, const SearchSpace& space, std::vector<Mask> sets, Stop& stop,
              const Progress& told, Best& best)
      : assessor_(assessor),
        model_(assessor.model()),
        cluster_(assessor.cluster()),
        request_(assessor.request()),
        space_(space),
        sets_(std::move(sets)),
        stop_(stop),
        told_(told),
        best_(best),
        blocks_(static_cast<int>(model_.blocks())),
        everything_((Mask{1} << blocks_) - 1),
        grad_(model_.blocks() * model_.blocks(), false),
        places_(cluster_) {
    for (int host = 0, first = 0; host < cluster_.hosts; ++host) {
      first_ranks_.push_back(first);
      devices_.push_back(cluster_.devices_of(host));
      first += devices_.back();
    }
    for (const BlockModel::Value& value : model_.values()) {
      if (!value.grad) continue;
      for (const uint32_t user : value.users) {
        grad_[user * model_.blocks() + value.producer] = true;
      }
    }
  }

  bool run() {
    examine_all();
    // Ranks of a stage ascend, so which replica has which share depends on the order of its hosts.
    // Where that decides what stays inside a host, exchanging two hosts is no symmetry: a good plan
    // is known by now, and all orders are examined.
    all_host_orders_ = hosts_are_alike_ && cluster_.hosts > 2 && cluster_.devices_per_host > 1;
    if (all_host_orders_ && !abandoned_) examine_all();
    return !abandoned_ && ascending_ranks_are_best();
  }

 private:
  struct Arrangement {
    plan::Schedule schedule;
    int64_t micro_batches;
    int groups, interleave;
  };

  /// The ranks of a stage ascend, so replicas that exchange the most may be on one host. Where
  /// links inside a host are the slower ones, another order may be better, which is not examined.
  [[nodiscard]] bool ascending_ranks_are_best() const {
    if (cluster_.hosts == 1 || cluster_.devices_per_host == 1) return true;
    const cost::Link &inside = cluster_.intra_host, &between = cluster_.inter_host;
    return inside.bandwidth_bytes_per_s >= between.bandwidth_bytes_per_s &&
           inside.latency_ns <= between.latency_ns;
  }

  void examine_all() {
    for (const Arrangement& arrangement : arrangements()) {
      draft_.micro_batches = arrangement.micro_batches;
      draft_.schedule = arrangement.schedule;
      micro_rows_ =
          (request_.global_batch + arrangement.micro_batches - 1) / arrangement.micro_batches;
      measure_rest();
      pipelines_of(arrangement.groups, arrangement.interleave);
    }
  }

  /// All of them; first those of the best plans so far, because a good plan found early cuts much.
  std::vector<Arrangement> arrangements() const {
    std::vector<Arrangement> result;
    for (const int64_t m : space_.micro_batches) {
      for (const plan::Schedule schedule : space_.schedules) {
        if (schedule == plan::Schedule::interleaved) {
          for (int v = space_.fewest_chunks; v <= space_.most_chunks; ++v) {
            for (int p = 2; p * v <= blocks_ && p <= cluster_.ranks(); ++p) {
              if (m % p == 0) result.push_back({schedule, m, p, v});
            }
          }
        } else {
          for (int stages = 1; stages <= std::min(blocks_, cluster_.ranks()); ++stages) {
            result.push_back({schedule, m, stages, 1});
          }
        }
      }
    }
    const std::vector<Scored> top = best_.top();
    std::ranges::stable_sort(result, {}, [&](const Arrangement& arrangement) {
      const auto found = std::ranges::find_if(top, [&](const Scored& scored) {
        return scored.draft.schedule == arrangement.schedule &&
               scored.draft.micro_batches == arrangement.micro_batches &&
               scored.draft.interleave == arrangement.interleave &&
               static_cast<int>(scored.draft.groups.size()) == arrangement.groups;
      });
      return found - top.begin();
    });
    return result;
  }

  /// The least time of a rank that each block needs, per micro-batch: on the number of replicas
  /// where it is smallest.
  void measure_rest() {
    const double extra = request_.recompute == Recompute::always ? 2.0 : 1.0;
    const auto most = static_cast<int>(
        std::min<int64_t>(cluster_.ranks(), request_.global_batch / draft_.micro_batches));
    least_ns_.assign(static_cast<size_t>(blocks_), kInfinity);
    least_forward_ = least_backward_ = least_host_ns_ = least_ns_;
    for (int replicas = 1; replicas <= std::max(most, 1); ++replicas) {
      const BlockCosts::AtRows& costs = model_.costs().at(rows(replicas));
      for (size_t block = 0; block < least_ns_.size(); ++block) {
        const double ns = replicas * (extra * costs.forward_ns[block] + costs.backward_ns[block]);
        least_ns_[block] = std::min(least_ns_[block], ns);
        least_forward_[block] = std::min(least_forward_[block], costs.forward_ns[block]);
        least_backward_[block] =
            std::min(least_backward_[block],
                     costs.backward_ns[block] + (extra - 1) * costs.forward_ns[block]);
        if (costs.forward_host_ns.empty()) continue;
        const double issued =
            replicas * (extra * costs.forward_host_ns[block] + costs.backward_host_ns[block]);
        least_host_ns_[block] = std::min(least_host_ns_[block], issued);
      }
    }
    for (std::vector<double>* least :
         {&least_ns_, &least_forward_, &least_backward_, &least_host_ns_}) {
      for (double& ns : *least) ns /= cluster_.fastest();
    }
  }

  int64_t rows(int replicas) const { return (micro_rows_ + replicas - 1) / replicas; }

  void pipelines_of(int groups, int interleave) {
    const int stages = groups * interleave;
    if (space_.stages > 0 && space_.stages != stages) return;
    if (!replicas_repeat(space_, groups)) return;
    draft_.interleave = interleave;
    draft_.groups.assign(static_cast<size_t>(groups), {});
    draft_.stage_of.assign(static_cast<size_t>(blocks_), 0);
    draft_.recompute.assign(static_cast<size_t>(stages), false);
    group_ns_.assign(static_cast<size_t>(groups), 0.0);
    used_.assign(static_cast<size_t>(cluster_.hosts), 0);
    counts_.clear();
    stages_ = stages;
    add_stage(0, 0);
  }

  bool give_up() {
    if (abandoned_) return true;
    abandoned_ = ++beginnings_ > kMostBeginnings;
    if (beginnings_ % 256 == 0) {
      told_.tell(static_cast<double>(beginnings_) / static_cast<double>(kMostBeginnings));
      abandoned_ = abandoned_ || stop_.now();
    }
    return abandoned_;
  }

  /// Stage `stage` begins behind the down-set `done`.
  void add_stage(int stage, Mask done) {
    const int behind = stages_ - stage - 1;
    for (const Mask next : sets_) {
      if ((done & ~next) != 0 || next == done) continue;
      if ((behind == 0) != (next == everything_)) continue;
      if (std::popcount(everything_ & ~next) < behind) continue;
      for (Mask rest = next & ~done; rest != 0; rest &= rest - 1) {
        draft_.stage_of[static_cast<size_t>(std::countr_zero(rest))] = stage;
      }
      if (stage < static_cast<int>(draft_.groups.size())) {
        choose_ranks(stage, done, next, 0, {});
      } else {
        place(stage, done, next);
      }
      if (abandoned_) return;
    }
  }

  /// Numbers of ranks on each host from `host` on. Hosts that have been used alike so far are
  /// taken for interchangeable, so the later one gets no more than the earlier; with
  /// `all_host_orders_` only what is the mirror image of another plan is left out.
  void choose_ranks(int stage, Mask done, Mask next, int host, std::vector<int> counts) {
    if (host == cluster_.hosts) {
      int sum = 0;
      for (const int count : counts) sum += count;
      const auto groups = static_cast<int>(draft_.groups.size());
      int left = 0;
      for (size_t h = 0; h < used_.size(); ++h) left += devices_[h] - used_[h];
      if (all_host_orders_ && mirror_comes_first(counts)) return;
      if (sum == 0 || left - sum < groups - stage - 1) return;
      if (sum * draft_.micro_batches > request_.global_batch) return;
      if (space_.one_replica && sum > 1) return;
      if (!space_.replicas.empty() && space_.replicas[static_cast<size_t>(stage)] != sum) return;
      Ranks& ranks = draft_.groups[static_cast<size_t>(stage)];
      ranks.clear();
      for (int h = 0; h < cluster_.hosts; ++h) {
        const auto k = static_cast<size_t>(h);
        if (counts[k] == 0) continue;
        ranks.push_back({first_ranks_[k] + used_[k], counts[k]});
      }
      for (size_t k = 0; k < counts.size(); ++k) used_[k] += counts[k];
      counts_.push_back(counts);
      place(stage, done, next);
      counts_.pop_back();
      for (size_t k = 0; k < counts.size(); ++k) used_[k] -= counts[k];
      return;
    }
    const auto k = static_cast<size_t>(host);
    int most = devices_[k] - used_[k];
    const bool alike = hosts_are_alike_ && !all_host_orders_ && host > 0 &&
                       std::ranges::all_of(counts_, [&](const auto& earlier) {
                         return earlier[k] == earlier[k - 1];
                       });
    if (alike) most = std::min(most, counts[k - 1]);
    counts.push_back(0);
    for (int count = 0; count <= most; ++count) {
      counts.back() = count;
      choose_ranks(stage, done, next, host + 1, counts);
      if (abandoned_) return;
    }
  }

  /// Whether the hosts in opposite order have been used alike so far, and now get more.
  bool mirror_comes_first(const std::vector<int>& counts) const {
    const auto mirrored = [](const std::vector<int>& of) {
      return std::vector<int>(of.rbegin(), of.rend());
    };
    return mirrored(counts) > counts && std::ranges::all_of(counts_, [&](const auto& earlier) {
             return mirrored(earlier) == earlier;
           });
  }

  /// The stage's blocks and ranks are chosen: goes on unless it cannot be part of a better plan.
  void place(int stage, Mask done, Mask next) {
    if (give_up() || breaks_pin(stage, next & ~done)) return;
    const size_t group = static_cast<size_t>(stage) % draft_.groups.size();
    const int replicas = size(draft_.groups[group]);
    const BlockCosts::AtRows& costs = model_.costs().at(rows(replicas));
    double ns = 0, host_ns = 0, rest_ns = 0;
    const double extra = request_.recompute == Recompute::always ? 2.0 : 1.0;
    for (Mask rest = next & ~done; rest != 0; rest &= rest - 1) {
      const auto block = static_cast<size_t>(std::countr_zero(rest));
      ns += extra * costs.forward_ns[block] + costs.backward_ns[block];
      if (costs.forward_host_ns.empty()) continue;
      host_ns += extra * costs.forward_host_ns[block] + costs.backward_host_ns[block];
    }
    // At most what the stage takes.
    ns = std::max(ns, host_ns) * slowdown(cluster_, draft_.groups[group]);
    double rest_host_ns = 0;
    for (Mask rest = everything_ & ~next; rest != 0; rest &= rest - 1) {
      const auto block = static_cast<size_t>(std::countr_zero(rest));
      rest_ns += least_ns_[block];
      if (!costs.forward_host_ns.empty()) rest_host_ns += least_host_ns_[block];
    }
    rest_ns = std::max(rest_ns, rest_host_ns);
    const auto m = static_cast<double>(draft_.micro_batches);
    const double limit = best_.iteration_ns();
    const double before = group_ns_[group];
    const double here = before + ns;
    if (kRoundedDown * m * here > limit) return;
    int ranks_left = cluster_.ranks();
    if (draft_.interleave == 1) {
      for (const int used : used_) ranks_left -= used;
      if (rest_ns > 0 && (ranks_left == 0 || kRoundedDown * m * rest_ns / ranks_left > limit))
        return;
    } else if (stage + 1 >= static_cast<int>(draft_.groups.size())) {
      // All groups are there: what is left is shared by them.
      double work = rest_ns, ranks = 0;
      for (size_t g = 0; g < draft_.groups.size(); ++g) {
        const int count = size(draft_.groups[g]);
        ranks += count;
        work += count * (g == group ? here : group_ns_[g]);
      }
      if (kRoundedDown * m * work / ranks > limit) return;
    }
    if (kRoundedDown * path_bound(stage, next, costs, here) > limit) return;
    group_ns_[group] = here;
    if (stage + 1 == stages_) {
      judge();
    } else {
      add_stage(stage + 1, next);
    }
    group_ns_[group] = before;
  }

  bool breaks_pin(int stage, Mask members) const {
    if (space_.pins.empty()) return false;
    for (Mask rest = members; rest != 0; rest &= rest - 1) {
      const int pin = space_.pins[static_cast<size_t>(std::countr_zero(rest))];
      if (pin == SearchSpace::kFree) continue;
      if (stage != (pin == SearchSpace::kLastStage ? stages_ - 1 : pin)) return true;
    }
    return false;
  }

  /// The longest way of one micro-batch through the blocks and back, with all the work of the stage
  /// on it that has most. Stages that are placed take their time; blocks that are not, their least.
  double path_bound(int stage, Mask placed, const BlockCosts::AtRows& costs, double group_ns) {
    const auto s = static_cast<size_t>(stage);
    const double extra = request_.recompute == Recompute::always ? 1.0 : 0.0;
    stage_forward_.resize(static_cast<size_t>(stages_));
    stage_backward_.resize(static_cast<size_t>(stages_));
    way_.resize(static_cast<size_t>(stages_));
    home_.resize(static_cast<size_t>(stages_));
    double forward = 0, backward = 0, way = 0, home = 0, links = 0;
    double forward_host = 0, backward_host = 0;
    for (size_t block = 0; block < draft_.stage_of.size(); ++block) {
      if ((placed >> block & 1) == 0 || draft_.stage_of[block] != stage) continue;
      forward += costs.forward_ns[block];
      backward += costs.backward_ns[block] + extra * costs.forward_ns[block];
      if (costs.forward_host_ns.empty()) continue;
      forward_host += costs.forward_host_ns[block];
      backward_host += costs.backward_host_ns[block] + extra * costs.forward_host_ns[block];
    }
    // At most what the stage takes.
    const double longer = slowdown(cluster_, draft_.ranks(stage));
    forward = std::max(forward, forward_host) * longer;
    backward = std::max(backward, backward_host) * longer;
    measure_arrivals(stage, placed);
    const auto count_m = static_cast<double>(draft_.micro_batches);
    const int here = places_.id(draft_.ranks(stage));
    for (size_t from = 0; from < s; ++from) {
      const Arrivals& values = arrivals_[from];
      if (!values.any) continue;
      const int there = places_.id(draft_.ranks(static_cast<int>(from)));
      const auto rows = static_cast<double>(micro_rows_);
      const double in = places_.transfer_ns(there, here, values.forward, rows);
      way = std::max(way, way_[from] + stage_forward_[from] + in);
      // The link takes the micro-batches one after the other.
      const double last = way_[from] + stage_forward_[from] + count_m * in + forward + backward;
      links = std::max(links, last);
      if (!values.any_grad) continue;
      const double out = places_.transfer_ns(there, here, values.backward, rows);
      const double back = home_[from] + stage_backward_[from];
      home = std::max(home, back + out);
      links = std::max(
          {links, last + out + back,
           way_[from] + stage_forward_[from] + in + forward + backward + count_m * out + back});
    }
    stage_forward_[s] = forward;
    stage_backward_[s] = backward;
    way_[s] = way;
    home_[s] = home;
    const auto m = static_cast<double>(draft_.micro_batches);
    const size_t first =
        s % draft_.groups.size();  // its forward starts the group, its backward ends it
    double bound = std::max(links, way_[first] + m * group_ns + home_[first]);
    // Blocks that are left come behind those that are placed.
    const size_t count = draft_.stage_of.size();
    block_way_.assign(count, 0.0);
    block_home_.assign(count, 0.0);
    for (size_t block = 0; block < count; ++block) {
      if ((placed >> block & 1) != 0) continue;
      for (const uint32_t before : model_.before(block)) {
        const auto from = static_cast<size_t>(draft_.stage_of[before]);
        const bool known = (placed >> before & 1) != 0;
        const double there =
            known ? way_[from] + stage_forward_[from] : block_way_[before] + least_forward_[before];
        block_way_[block] = std::max(block_way_[block], there);
        if (!grad_[block * count + before]) continue;
        const double back = known ? home_[from] + stage_backward_[from]
                                  : block_home_[before] + least_backward_[before];
        block_home_[block] = std::max(block_home_[block], back);
      }
      bound = std::max(bound, block_way_[block] + block_home_[block] +
                                  m * (least_forward_[block] + least_backward_[block]));
    }
    return bound;
  }

  /// What stage `stage` reads from each earlier one.
  void measure_arrivals(int stage, Mask placed) {
    arrivals_.assign(static_cast<size_t>(stages_), {});
    for (const BlockModel::Value& value : model_.values()) {
      if ((placed >> value.producer & 1) == 0) continue;
      const int from = draft_.stage_of[value.producer];
      if (from == stage) continue;
      const bool read = std::ranges::any_of(value.users, [&](uint32_t user) {
        return (placed >> user & 1) != 0 && draft_.stage_of[user] == stage;
      });
      if (!read) continue;
      Arrivals& sums = arrivals_[static_cast<size_t>(from)];
      sums.any = true;
      sums.forward.bytes_per_row += value.size.bytes_per_row;
      sums.forward.fixed_bytes += value.size.fixed_bytes;
      if (!value.grad) continue;
      sums.any_grad = true;
      sums.backward.bytes_per_row += value.size.bytes_per_row;
      sums.backward.fixed_bytes += value.size.fixed_bytes;
    }
  }

  void judge() {
    assessor_.choose_recompute(draft_);
    if (draft_.interleave == 1 || !is_free(request_.recompute)) {
      score();
      return;
    }
    const bool free = std::ranges::find(draft_.recompute, true) == draft_.recompute.end();
    if (free) {
      score();
      return;
    }
    // Which stages of a group recompute is a choice with several answers.
    for (Mask choice = 1; choice < (Mask{1} << stages_); ++choice) {
      for (int s = 0; s < stages_; ++s) {
        draft_.recompute[static_cast<size_t>(s)] = (choice >> s & 1) != 0;
      }
      if (give_up()) return;
      score();
    }
  }

  void score() {
    const double limit = best_.iteration_ns() / kRoundedDown;
    best_.add({draft_, 0, assessor_.assess(draft_, limit)});
  }

  Assessor& assessor_;
  const BlockModel& model_;
  const cost::Cluster& cluster_;
  const Request& request_;
  const SearchSpace& space_;
  std::vector<Mask> sets_;
  Stop& stop_;
  const Progress& told_;
  Best& best_;
  int blocks_;
  Mask everything_;

  Draft draft_;
  int stages_ = 0;
  int64_t micro_rows_ = 0;
  std::vector<double> least_ns_, least_forward_, least_backward_;  // [block]
  std::vector<double> least_host_ns_;                              // [block] by the host's clock
  std::vector<bool> grad_;  // [user * blocks + producer]: some value between them has a gradient
  std::vector<double> stage_forward_, stage_backward_, way_, home_;  // [stage] that is placed
  std::vector<double> block_way_, block_home_;
  struct Arrivals {
    cost::Size forward, backward;
    bool any = false, any_grad = false;
  };
  std::vector<Arrivals> arrivals_;  // [stage] at the stage that is being placed
  Placements places_;
  std::vector<double> group_ns_;  // compute of a micro-batch so far
  std::vector<int> used_;         // devices per host
  std::vector<std::vector<int>> counts_;
  int64_t beginnings_ = 0;
  bool abandoned_ = false;
  bool all_host_orders_ = false;
  bool hosts_are_alike_ = cluster_.host_of_rank.empty() && cluster_.speed_of_host.empty();
  std::vector<int> devices_, first_ranks_;  // of each host
};

}  // namespace

bool search_exactly(Assessor& assessor, const SearchSpace& space, Stop& stop, const Progress& told,
                    Best& best) {
  if (assessor.model().blocks() > kMostExactBlocks ||
      assessor.cluster().ranks() > kMostExactRanks) {
    return false;
  }
  std::vector<Mask> sets = down_set_masks(assessor.model());
  if (sets.empty()) return false;
  return Enumeration(assessor, space, std::move(sets), stop, told, best).run();
}

}  // namespace rannc::partition
