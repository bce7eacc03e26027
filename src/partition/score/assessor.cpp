#include "partition/score/assessor.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "partition/problem/slowdown.h"

namespace rannc::partition {
namespace {

constexpr double kNsPerSecond = 1e9;

void add(cost::Size& sum, const cost::Size& size) {
  sum.bytes_per_row += size.bytes_per_row;
  sum.fixed_bytes += size.fixed_bytes;
}

int64_t ceil_divide(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace

Assessor::Assessor(const BlockModel& model, const cost::Cluster& cluster, const Request& request)
    : model_(model),
      cluster_(cluster),
      request_(request),
      available_bytes_(cluster.device_memory_bytes * (1 - request.memory_margin)),
      placements_(cluster) {}

void Assessor::fill(const Draft& draft) {
  const auto count = static_cast<size_t>(draft.stages());
  const int64_t micro_rows = ceil_divide(request_.global_batch, draft.micro_batches);
  sheet_.micro_rows = static_cast<double>(micro_rows);
  sheet_.stages.assign(count, {});
  std::vector<const BlockCosts::AtRows*> costs(count);
  for (size_t s = 0; s < count; ++s) {
    const int64_t rows = ceil_divide(micro_rows, draft.replicas(static_cast<int>(s)));
    sheet_.stages[s].rows = static_cast<double>(rows);
    costs[s] = s < draft.groups.size() ? &model_.costs().at(rows) : costs[s - draft.groups.size()];
  }
  for (size_t block = 0; block < draft.stage_of.size(); ++block) {
    const auto s = static_cast<size_t>(draft.stage_of[block]);
    Stage& stage = sheet_.stages[s];
    stage.forward_ns += costs[s]->forward_ns[block];
    stage.gradient_ns += costs[s]->backward_ns[block];
    stage.saved_bytes += costs[s]->saved_bytes[block];
    stage.workspace_bytes = std::max(stage.workspace_bytes, costs[s]->workspace_bytes[block]);
    stage.state += model_.own_state(block);
    stage.own_gradient_bytes += model_.own_state(block).gradient_bytes;
    add(stage.graph_in, model_.own_input(block));
  }
  if (!costs.front()->forward_host_ns.empty()) add_host_times(draft, costs);
  for (size_t s = 0; s < count; ++s) {
    const double longer = slowdown(cluster_, draft.ranks(static_cast<int>(s)));
    sheet_.stages[s].forward_ns *= longer;
    sheet_.stages[s].gradient_ns *= longer;
  }
  fill_shared(draft);
  fill_values(draft);
  if (model_.moments() == nullptr) return;
  std::vector<int64_t> rows;
  for (const Stage& stage : sheet_.stages) rows.push_back(static_cast<int64_t>(stage.rows));
  const std::vector<Moments::Stage> held =
      model_.moments()->stages(draft.stage_of, draft.groups.size(), rows);
  for (size_t s = 0; s < count; ++s) {
    sheet_.stages[s].held = held[s];
    sheet_.stages[s].saved_bytes = held[s].saved_bytes;
  }
}

void Assessor::fill_shared(const Draft& draft) {
  sheet_.tied.clear();
  std::vector<int> stages;
  const auto stages_of = [&](const std::vector<uint32_t>& users) {
    stages.clear();
    for (const uint32_t block : users) stages.push_back(draft.stage_of[block]);
    std::ranges::sort(stages);
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  };
  std::map<std::vector<int>, double> tied;
  for (const BlockModel::SharedParam& param : model_.shared_params()) {
    stages_of(param.users);
    for (const int s : stages) sheet_.stages[static_cast<size_t>(s)].state += param.state;
    if (stages.size() == 1) {
      sheet_.stages[static_cast<size_t>(stages[0])].own_gradient_bytes +=
          param.state.gradient_bytes;
    } else if (param.state.gradient_bytes > 0) {
      tied[stages] += param.state.gradient_bytes;
    }
  }
  for (const auto& [members, bytes] : tied) sheet_.tied.push_back({members, bytes});
  for (const BlockModel::SharedInput& input : model_.shared_inputs()) {
    stages_of(input.users);
    for (const int s : stages) add(sheet_.stages[static_cast<size_t>(s)].graph_in, input.size);
  }
}

void Assessor::fill_values(const Draft& draft) {
  const auto count = static_cast<size_t>(draft.stages());
  sheet_.crossings.clear();
  crossing_of_.assign(count * count, -1);
  marks_.assign(count, -1);
  int serial = 0;
  for (const BlockModel::Value& value : model_.values()) {
    const int from = draft.stage_of[value.producer];
    ++serial;
    bool leaves = false;
    for (const uint32_t user : value.users) {
      const int to = draft.stage_of[user];
      if (to == from || marks_[static_cast<size_t>(to)] == serial) continue;
      marks_[static_cast<size_t>(to)] = serial;
      leaves = true;
      add(sheet_.stages[static_cast<size_t>(to)].in, value.size);
      if (value.grad) add(sheet_.stages[static_cast<size_t>(to)].in_gradients, value.size);
      int& place = crossing_of_[static_cast<size_t>(from) * count + static_cast<size_t>(to)];
      if (place < 0) {
        place = static_cast<int>(sheet_.crossings.size());
        sheet_.crossings.push_back({.from = from, .to = to, .forward = {}, .backward = {}});
      }
      Crossing& crossing = sheet_.crossings[static_cast<size_t>(place)];
      add(crossing.forward, value.size);
      if (!value.grad) continue;
      add(crossing.backward, value.size);
      crossing.has_backward = true;
    }
    if (!leaves) continue;
    add(sheet_.stages[static_cast<size_t>(from)].out, value.size);
    if (value.grad) add(sheet_.stages[static_cast<size_t>(from)].out_gradients, value.size);
  }
}

/// A stage takes the larger of its two sums, the device's and the host's.
void Assessor::add_host_times(const Draft& draft,
                              const std::vector<const BlockCosts::AtRows*>& costs) {
  std::vector<double> forward(sheet_.stages.size(), 0.0), backward = forward;
  for (size_t block = 0; block < draft.stage_of.size(); ++block) {
    const auto s = static_cast<size_t>(draft.stage_of[block]);
    forward[s] += costs[s]->forward_host_ns[block];
    backward[s] += costs[s]->backward_host_ns[block];
  }
  for (size_t s = 0; s < sheet_.stages.size(); ++s) {
    sheet_.stages[s].forward_ns = std::max(sheet_.stages[s].forward_ns, forward[s]);
    sheet_.stages[s].gradient_ns = std::max(sheet_.stages[s].gradient_ns, backward[s]);
  }
}

Pipeline Assessor::pipeline(const Draft& draft, bool with_transfers) {
  Pipeline result;
  result.schedule = draft.schedule;
  result.groups = static_cast<int>(draft.groups.size());
  result.micro_batches = draft.micro_batches;
  for (size_t s = 0; s < sheet_.stages.size(); ++s) {
    const Stage& stage = sheet_.stages[s];
    result.forward_ns.push_back(stage.forward_ns);
    result.backward_ns.push_back(stage.gradient_ns + (draft.recompute[s] ? stage.forward_ns : 0.0));
  }
  std::vector<int> places;
  for (const Ranks& ranks : draft.groups) places.push_back(placements_.id(ranks));
  for (const Crossing& crossing : sheet_.crossings) {
    StageTransfer& transfer = result.transfers.emplace_back();
    transfer.from = crossing.from;
    transfer.to = crossing.to;
    transfer.has_backward = crossing.has_backward;
    if (!with_transfers) continue;
    const int from = places[static_cast<size_t>(crossing.from) % places.size()];
    const int to = places[static_cast<size_t>(crossing.to) % places.size()];
    transfer.forward_ns = placements_.transfer_ns(from, to, crossing.forward, sheet_.micro_rows);
    if (!crossing.has_backward) continue;
    transfer.backward_ns = placements_.transfer_ns(from, to, crossing.backward, sheet_.micro_rows);
  }
  return result;
}

double Assessor::ring_ns(const std::vector<int>& hosts, size_t ranks, double bytes) const {
  if (ranks < 2) return 0;
  const auto r = static_cast<double>(ranks);
  double bandwidth = cluster_.intra_host.bandwidth_bytes_per_s;
  double latency = cluster_.intra_host.latency_ns;
  if (hosts.size() > 1) {
    int groups = 0;
    for (const int host : hosts) {
      groups = std::max(groups, groups_on_host_[static_cast<size_t>(host)]);
    }
    bandwidth = cluster_.inter_host.bandwidth_bytes_per_s /
                std::max(1.0, static_cast<double>(groups) / cluster_.links_per_host);
    latency = cluster_.inter_host.latency_ns;
  }
  return 2 * (r - 1) / r * bytes / bandwidth * kNsPerSecond + 2 * (r - 1) * latency;
}

double Assessor::reductions(const Draft& draft, const std::vector<double>& last_backward) {
  const size_t count = sheet_.stages.size(), p = draft.groups.size();
  std::vector<int> places;
  for (const Ranks& ranks : draft.groups) places.push_back(placements_.id(ranks));

  // Distinct sets of ranks that reduce something, for the load of network cards. The sets of groups
  // are disjoint, so a union is known by its groups.
  struct Union {
    std::vector<int> hosts;
    size_t ranks = 0;
  };
  std::map<std::vector<size_t>, Union> unions;
  const auto union_of = [&](std::vector<size_t> groups) -> const Union& {
    std::ranges::sort(groups);
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    const auto [found, added] = unions.try_emplace(groups);
    if (added) {
      for (const size_t group : groups) {
        const Placements::Place& place = placements_.place(places[group]);
        found->second.ranks += place.ranks.size();
        found->second.hosts.insert(found->second.hosts.end(), place.hosts.begin(),
                                   place.hosts.end());
      }
      std::vector<int>& hosts = found->second.hosts;
      std::ranges::sort(hosts);
      hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    }
    return found->second;
  };
  for (size_t s = 0; s < count; ++s) {
    if (sheet_.stages[s].own_gradient_bytes > 0) (void)union_of({s % p});
  }
  std::vector<const Union*> tied;
  for (const Tied& set : sheet_.tied) {
    std::vector<size_t> groups;
    for (const int s : set.stages) groups.push_back(static_cast<size_t>(s) % p);
    tied.push_back(&union_of(std::move(groups)));
  }
  groups_on_host_.assign(static_cast<size_t>(cluster_.hosts), 0);
  for (const auto& [groups, set] : unions) {
    if (set.hosts.size() < 2) continue;
    for (const int host : set.hosts) ++groups_on_host_[static_cast<size_t>(host)];
  }

  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t s) { return last_backward[s]; });
  std::vector<double> group_free(p, 0.0), stage_free = last_backward;
  double latest = 0;
  const int buckets = request_.reduction_buckets;
  for (const size_t s : order) {
    const Stage& stage = sheet_.stages[s];
    if (stage.own_gradient_bytes <= 0) continue;
    const Union& set = union_of({s % p});
    const double bucket = ring_ns(set.hosts, set.ranks, stage.own_gradient_bytes / buckets);
    double& free = group_free[s % p];
    // Buckets become ready at equal distances, so the last one waits for the one before it, for the
    // first one, or for nothing: a request may ask for a million of them.
    const double first_ready = last_backward[s] - stage.gradient_ns * (1 - 1.0 / buckets);
    free = std::max(std::max(free, first_ready) + buckets * bucket, last_backward[s] + bucket);
    stage_free[s] = std::max(stage_free[s], free);
    latest = std::max(latest, free);
  }
  for (size_t k = 0; k < tied.size(); ++k) {
    double start = 0;
    for (const int s : sheet_.tied[k].stages) {
      start = std::max(start, stage_free[static_cast<size_t>(s)]);
    }
    const double end =
        start + ring_ns(tied[k]->hosts, tied[k]->ranks, sheet_.tied[k].gradient_bytes);
    for (const int s : sheet_.tied[k].stages) stage_free[static_cast<size_t>(s)] = end;
    latest = std::max(latest, end);
  }
  return latest;
}

Assessment Assessor::assess(const Draft& draft, double give_up_ns) {
  ++examined_;
  Assessment result;
  result.peak_bytes = peak_bytes(draft);  // fills the sheet
  result.fits = result.peak_bytes <= available_bytes_;
  for (size_t s = 0; s < sheet_.stages.size(); ++s) {
    const Stage& stage = sheet_.stages[s];
    result.load_ns.push_back(stage.gradient_ns +
                             (draft.recompute[s] ? 2.0 : 1.0) * stage.forward_ns);
  }
  if (!result.fits) return result;
  const Pipeline line = pipeline(draft, true);
  if (pipeline_bound_ns(line) > give_up_ns) return result;
  const std::vector<double> last = last_backwards(line);
  result.iteration_ns = std::max(std::ranges::max(last), reductions(draft, last));
  return result;
}

TimeParts Assessor::parts(const Draft& draft) {
  fill(draft);
  const Pipeline with = pipeline(draft, true), without = pipeline(draft, false);
  const std::vector<double> last = last_backwards(with);
  const double computed = std::ranges::max(last);
  const double dense = std::ranges::max(last_backwards(without));
  std::vector<double> busy(draft.groups.size(), 0.0);
  size_t slowest = 0;
  double longest = -1;
  for (size_t s = 0; s < sheet_.stages.size(); ++s) {
    busy[s % busy.size()] += with.forward_ns[s] + with.backward_ns[s];
  }
  const size_t group = static_cast<size_t>(std::ranges::max_element(busy) - busy.begin());
  for (size_t s = group; s < sheet_.stages.size(); s += busy.size()) {
    if (with.forward_ns[s] + with.backward_ns[s] <= longest) continue;
    longest = with.forward_ns[s] + with.backward_ns[s];
    slowest = s;
  }
  TimeParts result;
  result.slowest_stage = slowest;
  result.compute_ns = static_cast<double>(draft.micro_batches) * busy[group];
  result.bubble_ns = std::max(0.0, dense - result.compute_ns);
  result.transfer_ns = computed - std::max(dense, result.compute_ns);
  result.reduction_ns = std::max(computed, reductions(draft, last)) - computed;
  return result;
}

}  // namespace rannc::partition
