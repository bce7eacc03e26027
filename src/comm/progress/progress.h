#pragma once

#include <memory>
#include <string>

#include "comm/progress/flights.h"
#include "comm/timeout.h"
#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// The thread that moves the messages of this process: after start-up only it calls the transport,
/// apart from MPI_Abort and MPI_Finalize. It sleeps between polls and never spins or yields,
/// because the cores belong to the computation: a thread that slept preempts a computing one at
/// once, one that yielded waits a whole time slice.
class Progress {
 public:
  explicit Progress(std::unique_ptr<Flights> flights);
  /// Stops the thread.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;

  /// `data` is only read when `sends`. The thread calls `then`.
  [[nodiscard]] Handle post(bool sends, void* data, int64_t bytes, int peer, int64_t tag,
                            Purpose purpose, double timeout_s, Communicator::Then then);

  /// Waits until every rank has left, then stops the thread; further messages throw CommError.
  /// Other ranks may still train or write files for long, so it goes on as long as they answer when
  /// asked, once every `timeout_s`. Throws CommError naming a rank that does not, or when this rank
  /// has given up a wait before.
  void leave(double timeout_s);

  /// Ends the thread at once; nothing more is sent or answered.
  void stop();

 private:
  struct Impl;
  // Shared with the operations, which may outlive this object.
  std::shared_ptr<Impl> impl_;
};

}  // namespace rannc::comm
