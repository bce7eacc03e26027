#pragma once

#include <memory>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// One message of a round.
struct Message {
  bool sends = false;  ///< else receives
  void* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;
};

/// A collective as this rank takes part in it: rounds of messages, with computation in between.
class Rounds {
 public:
  virtual ~Rounds() = default;
  /// What is to be sent and received next; nothing: it is done. Called when all messages of the
  /// round before have arrived, by the thread that saw the last one arrive.
  [[nodiscard]] virtual std::vector<Message> next() = 0;
};

/// Runs `rounds` without the caller: each begins as soon as the one before has ended. `owner` owns
/// the memory that they work on; it is kept until they are done.
[[nodiscard]] Handle start(Communicator& comm, std::unique_ptr<Rounds> rounds, int64_t tag,
                           Purpose purpose, std::shared_ptr<void> owner);

}  // namespace rannc::comm
