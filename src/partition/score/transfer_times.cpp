#include "partition/score/transfer_times.h"

#include <algorithm>
#include <cstdint>

namespace rannc::partition {
namespace {

constexpr double kNsPerSecond = 1e9;

/// Keeps the loads that are largest for some sizes.
void keep_largest(std::vector<std::pair<double, double>>& loads) {
  std::ranges::sort(loads, std::greater<>());
  std::vector<std::pair<double, double>> kept;
  for (const auto& load : loads) {
    if (load.second <= 0) continue;
    if (kept.empty() || load.second > kept.back().second) kept.push_back(load);
  }
  loads = std::move(kept);
}

double largest_bytes(const std::vector<std::pair<double, double>>& loads, const cost::Size& size,
                     double micro_rows) {
  double most = 0;
  for (const auto& [share, messages] : loads) {
    most = std::max(most, share * micro_rows * size.bytes_per_row + messages * size.fixed_bytes);
  }
  return most;
}

}  // namespace

int Placements::id(const Ranks& ranks) {
  const auto [found, added] = ids_.emplace(ranks, static_cast<int>(places_.size()));
  if (!added) return found->second;
  Place place;
  for (const Segment& segment : ranks) {
    for (int k = 0; k < segment.count; ++k) place.ranks.push_back(segment.first + k);
  }
  for (const int rank : place.ranks) place.hosts.push_back(cluster_.host_of(rank));
  std::ranges::sort(place.hosts);
  place.hosts.erase(std::unique(place.hosts.begin(), place.hosts.end()), place.hosts.end());
  places_.push_back(std::move(place));
  return found->second;
}

const Placements::Loads& Placements::loads(int from, int to) {
  const auto [found, added] = loads_.try_emplace({from, to});
  Loads& result = found->second;
  if (!added) return result;
  const std::vector<int>& senders = place(from).ranks;
  const std::vector<int>& receivers = place(to).ranks;
  const auto s = static_cast<int64_t>(senders.size()), t = static_cast<int64_t>(receivers.size());
  struct Sums {
    Load inside{0, 0}, between{0, 0};
  };
  std::vector<Sums> sent(senders.size()), received(receivers.size());
  std::map<int, std::pair<Load, Load>> hosts;  // sent, received
  // Shares in units of 1 / (s * t), so that overlaps are exact.
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = i * t / s; j < t && j * s < (i + 1) * t; ++j) {
      const int64_t overlap = std::min((i + 1) * t, (j + 1) * s) - std::max(i * t, j * s);
      const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
      if (overlap <= 0 || senders[a] == receivers[b]) continue;
      const double share = static_cast<double>(overlap) / static_cast<double>(s * t);
      const int from_host = cluster_.host_of(senders[a]), to_host = cluster_.host_of(receivers[b]);
      const auto add = [share](Load& load) {
        load.first += share;
        load.second += 1;
      };
      const bool inside = from_host == to_host;
      add(inside ? sent[a].inside : sent[a].between);
      add(inside ? received[b].inside : received[b].between);
      if (inside) continue;
      add(hosts[from_host].first);
      add(hosts[to_host].second);
    }
  }
  for (const std::vector<Sums>* all : {&sent, &received}) {
    for (const Sums& sums : *all) {
      result.device_inside.push_back(sums.inside);
      result.device_between.push_back(sums.between);
    }
  }
  for (const auto& [host, sums] : hosts) {
    result.host_between.push_back(sums.first);
    result.host_between.push_back(sums.second);
  }
  keep_largest(result.device_inside);
  keep_largest(result.device_between);
  keep_largest(result.host_between);
  return result;
}

double Placements::transfer_ns(int from, int to, const cost::Size& size, double micro_rows) {
  const Loads& all = loads(from, to);
  double ns = 0;
  if (!all.device_inside.empty()) {
    const double bytes = largest_bytes(all.device_inside, size, micro_rows);
    const cost::Link& link = cluster_.intra_host;
    ns = link.latency_ns + bytes / link.bandwidth_bytes_per_s * kNsPerSecond;
  }
  if (!all.device_between.empty()) {
    const double bytes =
        std::max(largest_bytes(all.device_between, size, micro_rows),
                 largest_bytes(all.host_between, size, micro_rows) / cluster_.links_per_host);
    const cost::Link& link = cluster_.inter_host;
    ns = std::max(ns, link.latency_ns + bytes / link.bandwidth_bytes_per_s * kNsPerSecond);
  }
  return ns;
}

}  // namespace rannc::partition
