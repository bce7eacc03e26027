#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/progress/control.h"
#include "comm/progress/transfer.h"

namespace rannc::comm {

/// Tags from here on, and below twice this number, have a communicator of their own.
inline constexpr int64_t kFirstCollectiveTag = int64_t{1} << 30;

/// What is under way between this rank and the others: messages in pieces, questions and answers,
/// and the end of those that leave. A transport is one of these.
///
/// One thread makes it, and then it belongs to the thread that moves the messages, apart from
/// rank(), size() and wake(): no lock guards it.
class Flights {
 public:
  /// Hears of what has landed, from poll().
  class Listener {
   public:
    virtual ~Listener() = default;
    /// A piece of a message; `error` says what is wrong with it, if anything.
    virtual void piece_landed(Transfer& transfer, const std::string& error) = 0;
    /// Some bytes of a message have come that has not landed yet.
    virtual void message_moves() = 0;
    virtual void control_landed(const ControlMessage& message, int from) = 0;
    /// Every rank has called leave().
    virtual void all_have_left() = 0;
    /// Another rank is gone, and messages with it never come; `reason` names it.
    virtual void lost(const std::string& reason) = 0;
  };

  Flights() = default;
  virtual ~Flights() = default;
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Starts to take control messages, for good. To be called once, first.
  virtual void listen() = 0;
  virtual void send_control(int to, const ControlMessage& message) = 0;
  /// The transfer's memory must stay until it has landed or was cancelled.
  virtual void start(const std::shared_ptr<Transfer>& transfer) = 0;
  /// Once or more often.
  virtual void leave() = 0;

  /// Tells `listener`, in the order of the transport, what has landed; false: nothing has. Never
  /// blocks.
  virtual bool poll(Listener& listener) = 0;

  /// Nothing is under way but listening.
  [[nodiscard]] virtual bool idle() const = 0;
  /// Somebody may be blocked until this thread looks again.
  [[nodiscard]] virtual bool needed_by_others() const = 0;
  /// From now on no receive writes to the memory of its transfer.
  virtual void cancel_receives() = 0;

  /// Whether sleep() returns as soon as something happens. Otherwise the thread has to look again.
  [[nodiscard]] virtual bool hears() const { return false; }
  virtual void sleep() {}
  /// Any thread: lets sleep() return.
  virtual void wake() {}
};

}  // namespace rannc::comm
