#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "comm/timeout.h"

namespace rannc::comm {

/// What the progress threads tell each other: "why do you not come?" and the answer. One program
/// runs on all ranks, so the struct itself is the wire format.
struct ControlMessage {
  enum class Kind : int32_t { question, answer };

  Kind kind = Kind::question;
  int32_t serial = 0;  ///< of the question
  PeerState::Kind state = PeerState::Kind::silent;
  int32_t sends = 0;
  int32_t peer = -1;
  int32_t stage = -1;
  int32_t micro_batch = -1;
  int64_t arrived = 0;
  char what[96] = {};
};
static_assert(std::is_trivially_copyable_v<ControlMessage>);

inline ControlMessage answer(int32_t serial, const PeerState& state) {
  const Waiting& waiting = state.waiting;
  ControlMessage message{.kind = ControlMessage::Kind::answer,
                         .serial = serial,
                         .state = state.kind,
                         .sends = waiting.sends ? 1 : 0,
                         .peer = waiting.peer,
                         .stage = waiting.stage,
                         .micro_batch = waiting.micro_batch,
                         .arrived = state.arrived};
  const size_t length = std::min(waiting.what.size(), sizeof(message.what) - 1);
  std::memcpy(message.what, waiting.what.data(), length);
  return message;
}

inline PeerState state_in(const ControlMessage& message) {
  return {message.state,
          {message.sends != 0, message.peer, message.what, message.stage, message.micro_batch},
          message.arrived};
}

}  // namespace rannc::comm
