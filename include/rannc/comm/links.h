#pragma once

#include <functional>
#include <optional>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

struct LinkSpeed {
  double latency_ns = 0;             ///< of a message of a few bytes, one way
  double bandwidth_bytes_per_s = 0;  ///< of a message of a megabyte, beyond the latency
};

/// What messages between two ranks of one host, and of two hosts, take; of several links between
/// hosts the slowest counts. Empty where the job has no such pair.
struct LinkSpeeds {
  std::optional<LinkSpeed> intra_host;
  std::optional<LinkSpeed> inter_host;
};

/// Sends a few messages to and fro between two ranks of a host, and between rank 0 and each other
/// host, while the other ranks wait: about 10 ms each, and at most 5 s on a slow link. Every rank
/// calls it and gets the same numbers.
[[nodiscard]] LinkSpeeds measure_links(Communicator& comm);
/// The same from and to memory of a device: `memory` makes some of so many bytes that lives until
/// this returns, and `stream` is the order of its work.
[[nodiscard]] LinkSpeeds measure_links(Communicator& comm, Stream& stream,
                                       const std::function<Buffer(int64_t bytes)>& memory);

}  // namespace rannc::comm
