#pragma once

#include <cstdint>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// A message between this rank and another one, from its posting until it is over.
struct Transfer {
  // Set when it is posted.
  const bool sends;
  char* const data;  ///< only read when `sends`
  const int64_t bytes;
  const int peer;
  const int64_t tag;
  const Purpose purpose;
  const double timeout_s;

  // The thread's own: only the one that moves the messages touches them once it is posted.
  Communicator::Then then;
  int pieces_left = 0;
  bool cancelled = false;

  bool finished = false;  ///< guarded by the mutex of Progress
};

}  // namespace rannc::comm
