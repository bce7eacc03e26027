#pragma once

#include <memory>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// `ranks` communicators of one process, to be used by one thread each. They live as long as any
/// of them does. Data is copied when both sides have posted, so the caller's memory rules equal
/// those of a network.
[[nodiscard]] std::vector<std::unique_ptr<Communicator>> make_local(int ranks,
                                                                    double timeout_s = 20);

}  // namespace rannc::comm
