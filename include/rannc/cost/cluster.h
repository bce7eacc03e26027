#pragma once

#include <string>
#include <string_view>

namespace rannc::cost {

struct Link {
  double bandwidth_bytes_per_s = 0;
  double latency_ns = 0;
  friend bool operator==(const Link&, const Link&) = default;
};

/// Hosts with equal devices: the file `cluster.toml` of docs/planner-files.md.
/// Rank q is device q mod devices_per_host of host q / devices_per_host.
struct Cluster {
  int hosts = 1;
  int devices_per_host = 1;
  double device_memory_bytes = 0;
  Link intra_host;
  Link inter_host;
  int links_per_host = 1;
  double price_per_device_hour = 0;  ///< version 2 of the file

  [[nodiscard]] int ranks() const { return hosts * devices_per_host; }
  [[nodiscard]] int host_of(int rank) const { return rank / devices_per_host; }
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

void verify(const Cluster& cluster);  ///< throws ConfigError naming the key
[[nodiscard]] Cluster cluster_from_toml(std::string_view toml, std::string_view file_name);
[[nodiscard]] std::string to_toml(const Cluster& cluster);

}  // namespace rannc::cost
