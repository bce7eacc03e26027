#pragma once

#include <memory>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// Some ranks of a job as a communicator of their own: `ranks`, ascending, this rank among them,
/// are 0, 1, ... there. It has the tags of `all`, so two subsets of one job have at most one rank
/// in common, or are not used at the same time. Where messages of `all` have an order, `all` is
/// what connect() is called of, with the traffic of all subsets.
[[nodiscard]] std::shared_ptr<Communicator> subset(std::shared_ptr<Communicator> all,
                                                   std::vector<int> ranks);

}  // namespace rannc::comm
