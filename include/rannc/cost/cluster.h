#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace rannc::cost {

struct Link {
  double bandwidth_bytes_per_s = 0;
  double latency_ns = 0;
  friend bool operator==(const Link&, const Link&) = default;
};

/// Hosts with equal devices: the file `cluster.toml` of docs/planner-files.md.
/// Rank q is device q mod devices_per_host of host q / devices_per_host, or is on host_of_rank[q].
struct Cluster {
  int hosts = 1;
  int devices_per_host = 1;
  double device_memory_bytes = 0;
  Link intra_host;
  Link inter_host;
  int links_per_host = 1;
  double price_per_device_hour = 0;  ///< version 2 of the file
  /// Version 3: where hosts have other numbers of devices, of which `devices_per_host` is the most,
  /// or their ranks are dealt out; else empty.
  std::vector<int> host_of_rank{};
  /// Version 3: how fast each host computes, where a host of speed 1 takes the times of the graph's
  /// costs; empty: all do.
  std::vector<double> speed_of_host{};

  [[nodiscard]] int ranks() const {
    return host_of_rank.empty() ? hosts * devices_per_host : static_cast<int>(host_of_rank.size());
  }
  [[nodiscard]] int host_of(int rank) const {
    return host_of_rank.empty() ? rank / devices_per_host : host_of_rank[static_cast<size_t>(rank)];
  }
  [[nodiscard]] int devices_of(int host) const {
    return host_of_rank.empty() ? devices_per_host
                                : static_cast<int>(std::ranges::count(host_of_rank, host));
  }
  [[nodiscard]] double speed_of(int host) const {
    return speed_of_host.empty() ? 1 : speed_of_host[static_cast<size_t>(host)];
  }
  [[nodiscard]] double fastest() const {
    return speed_of_host.empty() ? 1 : std::ranges::max(speed_of_host);
  }
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

/// The ranks of the first of `hosts`, then those of the next one and so on, ascending on each.
[[nodiscard]] std::vector<int> ranks_by_host(const Cluster& cluster, const std::vector<int>& hosts);

/// The same cluster with its hosts in this order, and its ranks numbered so.
[[nodiscard]] Cluster numbered_by_host(const Cluster& cluster, const std::vector<int>& hosts);

/// Orders of the hosts that differ in where on a line the fast ones and those of many devices are:
/// all of them, or, where these are many, a few. One where all hosts are alike fast.
[[nodiscard]] std::vector<std::vector<int>> host_orders(const Cluster& cluster);

void verify(const Cluster& cluster);  ///< throws ConfigError naming the key
[[nodiscard]] Cluster cluster_from_toml(std::string_view toml, std::string_view file_name);
[[nodiscard]] std::string to_toml(const Cluster& cluster);

}  // namespace rannc::cost
