#include "comm/timeout.h"

#include <fmt/format.h>

#include <set>

namespace rannc::comm {

std::string describe(const Waiting& waiting) {
  std::string text = fmt::format("{} the {}", waiting.sends ? "to send" : "for", waiting.what);
  if (waiting.micro_batch >= 0) text += fmt::format(" of micro-batch {}", waiting.micro_batch);
  text += fmt::format(" {} rank {}", waiting.sends ? "to" : "from", waiting.peer);
  if (waiting.stage >= 0) text += fmt::format(" (stage {})", waiting.stage);
  return text;
}

std::string explain_timeout(int rank, double seconds, const Waiting& waiting,
                            const std::function<PeerState(int rank)>& ask) {
  std::string text = fmt::format("rank {} waited {:.3g} s {}", rank, seconds, describe(waiting));
  std::set<int> seen{rank};
  for (int peer = waiting.peer;;) {
    const PeerState state = ask(peer);
    switch (state.kind) {
      case PeerState::Kind::silent:
        return text + fmt::format("; rank {} does not answer: it is stopped or dead", peer);
      case PeerState::Kind::left:
        return text + fmt::format("; rank {} has left: its script ended", peer);
      case PeerState::Kind::busy:
        return text + fmt::format(
                          "; rank {} waits for nobody: it computes, or its script does not "
                          "make this step.\n  If the step just takes long, raise "
                          "comm_timeout_s (now {:.3g})",
                          peer, seconds);
      case PeerState::Kind::waiting:
        text += fmt::format("; rank {} waits {}", peer, describe(state.waiting));
        seen.insert(peer);
        peer = state.waiting.peer;
        if (seen.contains(peer)) return text + "; they wait for each other";
    }
  }
}

std::optional<Deadlock> find_deadlock(int rank, const Waiting& waiting,
                                      const std::function<PeerState(int rank)>& ask) {
  Deadlock found{{rank, ask(rank).arrived}};
  std::set<int> seen{rank};
  for (Waiting next = waiting; !next.sends;) {
    if (!seen.insert(next.peer).second) return found;
    const PeerState state = ask(next.peer);
    found.emplace_back(next.peer, state.arrived);
    if (state.kind == PeerState::Kind::left) return found;
    if (state.kind != PeerState::Kind::waiting) break;
    next = state.waiting;
  }
  return std::nullopt;
}

}  // namespace rannc::comm
