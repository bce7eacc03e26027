#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// What a thread blocked in Operation::wait() waits for.
struct Waiting {
  bool sends = false;  ///< to `peer`; else receives from it
  int peer = -1;
  std::string what;
  int stage = -1;
  int micro_batch = -1;
};

/// What a rank says when it is asked why it does not come.
struct PeerState {
  enum class Kind { silent, busy, waiting, left };
  Kind kind = Kind::silent;
  Waiting waiting;      ///< kind == waiting: its longest wait
  int64_t arrived = 0;  ///< parts of messages that have come to it, or have gone, so far
};

/// Ranks that wait for each other, and what each had got when it said so. Of a deadlock two looks
/// are equal; where a message is on its way, they are not.
using Deadlock = std::vector<std::pair<int, int64_t>>;

/// "for the activation of micro-batch 3 from rank 2 (stage 1)"
[[nodiscard]] std::string describe(const Waiting& waiting);

/// The message of a wait that was given up. Follows the peers by `ask` to the one at the root:
/// a rank that waits for nobody, does not answer, has left, or closes a circle.
[[nodiscard]] std::string explain_timeout(int rank, double seconds, const Waiting& waiting,
                                          const std::function<PeerState(int rank)>& ask);

/// The peers, followed as above, if they lead to one that has left, or in a circle of ranks that
/// all wait to receive. What is on its way already may still come; nothing else will. `ask` answers
/// for `rank` itself, too.
[[nodiscard]] std::optional<Deadlock> find_deadlock(int rank, const Waiting& waiting,
                                                    const std::function<PeerState(int rank)>& ask);

}  // namespace rannc::comm
