#pragma once

#include <vector>

namespace rannc::comm {

/// Of each rank of the job, whether messages to and from it move without the sender's processor, as
/// where the receiver reads the sender's memory itself. Tried out between two ranks of each host;
/// ranks of other hosts count as ones that need the sender. Collective.
std::vector<bool> pulling_peers();

}  // namespace rannc::comm
