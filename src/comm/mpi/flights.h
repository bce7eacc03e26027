#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/control.h"
#include "comm/mpi/transfer.h"

namespace rannc::comm {

/// Tags from here on, and below twice this number, have a communicator of their own.
inline constexpr int64_t kFirstCollectiveTag = int64_t{1} << 30;

/// The MPI requests under way, each with what it is for: messages in pieces, questions and answers,
/// and the barrier of those that leave.
///
/// One thread makes it, and then it belongs to the thread that moves the messages: no lock guards
/// it. Apart from start-up and the end of the process, MPI is called only here.
class Flights {
 public:
  /// Hears of what has landed, from poll().
  class Listener {
   public:
    virtual ~Listener() = default;
    /// A piece of a message; `error` says what is wrong with it, if anything.
    virtual void piece_landed(Transfer& transfer, const std::string& error) = 0;
    virtual void control_landed(const ControlMessage& message, int from) = 0;
    /// Every rank has called leave().
    virtual void all_have_left() = 0;
  };

  /// Over duplicates of MPI_COMM_WORLD, so every rank of the job constructs it.
  Flights();
  ~Flights();
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;

  /// Starts to take control messages, for good. To be called once, first.
  void listen();
  void send_control(int to, const ControlMessage& message);
  /// The transfer's memory must stay until it has landed or was cancelled.
  void start(const std::shared_ptr<Transfer>& transfer);
  /// Once or more often.
  void leave();

  /// Tells `listener`, in the order of MPI, what has landed; false: nothing has. Never blocks.
  bool poll(Listener& listener);

  /// Nothing is under way but listening.
  [[nodiscard]] bool idle() const;
  /// Somebody may be blocked until this thread looks again.
  [[nodiscard]] bool needed_by_others() const;
  /// From now on no receive writes to the memory of its transfer.
  void cancel_receives();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // no header names MPI's types
};

}  // namespace rannc::comm
