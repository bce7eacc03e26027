#pragma once

#include <cstdint>
#include <vector>

namespace rannc::runtime {

/// One action of a training call, as it happened on this rank.
struct Span {
  int action = -1;  ///< index into Program::actions[rank]; -1: a phase's end, until all is sent
  int64_t begin_ns = 0;  ///< by this host's monotonic clock
  int64_t end_ns = 0;
  int64_t cpu_ns = 0;  ///< that the calling thread ran
};

/// Sums over training calls.
struct Times {
  int64_t compute_ns = 0;  ///< forward and backward of stages, from begin to end
  int64_t send_ns = 0;     ///< of the calling thread, as the next two: copies, sums and posting
  int64_t receive_ns = 0;
  int64_t reduce_ns = 0;  ///< gradients, scalar outputs, running statistics
  int64_t idle_ns = 0;    ///< off the processor within the last three: waiting for other ranks
};

}  // namespace rannc::runtime
