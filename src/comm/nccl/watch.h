#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/api.h"
#include "comm/nccl/library.h"
#include "rannc/comm/device.h"

namespace rannc::comm::nccl {

/// Notices what goes wrong while nobody of the host waits: an operation that does not end, or an
/// error that NCCL finds by itself. A thread of its own looks at the operations under way, and
/// another one, which asks nobody, whether that one goes on.
class Watch {
 public:
  /// `failed` is called once, by the watch's thread or the one that fail() was called by.
  /// `use_device`: by the watch's thread before it looks at events.
  Watch(std::shared_ptr<const Library> library, int rank, std::function<double()> timeout_s,
        std::function<void()> use_device, std::function<void(const std::string&)> failed);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Calls `call`, which calls NCCL once: communicators are not ended meanwhile, unless it takes
  /// too long. Throws as check(). `what`: "issue what is for the gradient reduction".
  Result inside(const std::string& what, const std::function<Result()>& call);

  void add(Comm comm);
  /// `lane` numbers the streams: operations of one end in the order in which they are added.
  /// `what`: for an error, "for the activation of micro-batch 3 from rank 2 (stage 1)".
  void add(int lane, std::shared_ptr<Event> end, std::string what);
  /// `owner` owns memory of an operation for whose `end` nobody waits any more.
  void keep(std::shared_ptr<Event> end, std::shared_ptr<void> owner);

  /// Ends all communicators, so that nothing waits on the device. The first reason stays.
  void fail(const std::string& reason);
  /// Throws CommError once something has failed.
  void check();
  /// Ends all communicators, with nothing wrong, when what is under way has ended: another rank may
  /// wait for it.
  void end_all();
  /// Looks no more, and aborts the communicators that are left.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct UnderWay {
    std::shared_ptr<Event> end;
    std::string what;
  };
  struct Lane {
    std::deque<UnderWay> operations;
    Clock::time_point first_since;  // those before the first have ended, or it was added
  };

  struct Kept {
    std::shared_ptr<Event> end;
    std::shared_ptr<void> owner;
  };
  struct Call {
    Clock::time_point since;
    std::string what;
  };

  void run();
  void run_guard();
  void drop_ended();
  void drop_first_operations();
  /// Something that is wrong now.
  [[nodiscard]] std::optional<std::string> look();
  [[nodiscard]] std::optional<std::string> error_of_nccl();
  [[nodiscard]] std::string first_under_way() const;
  /// `patience`: how long NCCL is waited for.
  void abort_all(std::chrono::milliseconds patience);

  const std::shared_ptr<const Library> library_;
  const Api& api_;
  const int rank_;
  const std::function<double()> timeout_s_;
  const std::function<void()> use_device_;
  const std::function<void(const std::string&)> failed_;
  std::timed_mutex calls_;  // of whoever is inside of NCCL; taken before mutex_
  std::mutex mutex_;        // guards the following
  std::condition_variable changed_;
  std::vector<Comm> comms_;
  std::map<int, Lane> lanes_;
  std::vector<Kept> kept_;
  std::optional<Call> call_;  // that a thread is inside of
  std::optional<std::string> reason_;
  std::optional<Clock::time_point> asks_since_;  // when the thread began to look
  bool stop_ = false;
  std::thread thread_;  // it uses the others, and never asks the device with the mutex
  std::thread guard_;   // last: it looks whether that one goes on
};

}  // namespace rannc::comm::nccl
