#pragma once

#include <string>
#include <vector>

#include "rannc/comm/sockets.h"

namespace rannc::comm {

/// Descriptors of the connections to the other ranks, [rank]; this rank's own is -1. As
/// make_sockets().
[[nodiscard]] std::vector<int> connect_all(const Listener& listener, int rank,
                                           const std::vector<std::string>& addresses,
                                           const std::string& secret, double timeout_s);

/// "the file is not there", for the last call of the system.
[[nodiscard]] std::string last_error();

}  // namespace rannc::comm
