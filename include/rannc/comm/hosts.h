#pragma once

#include <string>
#include <vector>

namespace rannc::comm {

/// The host of a rank, as it says.
struct Host {
  std::string name;
  /// Equal in two processes only if they share a kernel since its start and its network.
  std::string identity;
};

/// This process's host.
[[nodiscard]] Host own_host();

/// A name for the host of each rank: its own, with a number behind it where another host has the
/// same one.
[[nodiscard]] std::vector<std::string> distinct_names(const std::vector<Host>& hosts);

}  // namespace rannc::comm
