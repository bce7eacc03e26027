#pragma once

#include <vector>

namespace rannc::comm {

/// For each rank of the job.
struct Peers {
  std::vector<bool> on_this_host;
  /// Whether messages to and from it move without the sender's processor, as where the receiver
  /// reads the sender's memory itself; ranks of other hosts need the sender.
  std::vector<bool> pulling;
};

/// Tried out between two ranks of each host. Collective.
Peers find_peers();

}  // namespace rannc::comm
