#pragma once

#include <memory>

#include "rannc/comm/communicator.h"

// Mistakes to plant, for tests: a suite that cannot see them would prove nothing of the order of a
// device's work and the lifetimes of its memory.

namespace rannc::comm {

enum class StreamMistake {
  records_nothing,    ///< what is sent may not have been computed
  waits_for_nothing,  ///< what has been received may be used before it is there
  of_another_thread,  ///< records and waits in a thread with a current stream of its own
};
/// `stream` with a mistake.
[[nodiscard]] std::shared_ptr<Stream> careless(std::shared_ptr<Stream> stream,
                                               StreamMistake mistake);

enum class MessageMistake {
  forgets_sends,     ///< says that a message has gone at once, and its memory is freed
  issues_elsewhere,  ///< a thread of its own begins what is sent and waits for what is received
};
/// `communicator` with a mistake in what devices send and receive.
[[nodiscard]] std::shared_ptr<Communicator> careless(std::shared_ptr<Communicator> communicator,
                                                     MessageMistake mistake);

}  // namespace rannc::comm
