#include "comm/progress/questions.h"

namespace rannc::comm {

Questions::Wait Questions::begin_wait(Waiting waiting) {
  return waits_.insert(waits_.end(), std::move(waiting));
}

int32_t Questions::ask(int peer) {
  const int32_t question = ++questions_;
  unsent_.emplace_back(peer,
                       ControlMessage{.kind = ControlMessage::Kind::question, .serial = question});
  return question;
}

PeerState Questions::take_answer(int32_t question) {
  const auto found = answers_.extract(question);
  return found.empty() ? PeerState{} : found.mapped();
}

std::vector<std::pair<int, ControlMessage>> Questions::take_unsent() {
  return std::exchange(unsent_, {});
}

std::optional<ControlMessage> Questions::hear(const ControlMessage& message) {
  if (message.kind == ControlMessage::Kind::question) return answer(message.serial, own_state());
  answers_[message.serial] = state_in(message);
  return std::nullopt;
}

PeerState Questions::own_state() const {
  if (left_) return {PeerState::Kind::left, {}, arrived_};
  if (gave_up_) return {PeerState::Kind::waiting, *gave_up_, arrived_};
  if (waits_.empty()) return {PeerState::Kind::busy, {}, arrived_};
  return {PeerState::Kind::waiting, waits_.front(), arrived_};
}

}  // namespace rannc::comm
