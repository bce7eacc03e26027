#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

namespace rannc::standin {

/// A point in the order of a queue, which is reached once.
class Mark {
 public:
  void reach();
  [[nodiscard]] bool reached() const;
  void wait();
  /// When it was reached.
  [[nodiscard]] std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point time_;
};

/// What a stream of a device is here: a thread that does work in the order in which it is given,
/// each after a random delay.
class Queue {
 public:
  using Work = std::function<void()>;
  /// `delay_us`: the mean of the delays, read before each work. `failed`: takes the exception of a
  /// work; nothing else is done with it.
  Queue(std::string name, uint64_t seed, const std::atomic<double>& delay_us,
        std::function<void(const char*)> failed);
  /// Does what was given.
  ~Queue();

  void give(Work work) { push(std::move(work), Kind::kernel); }
  /// Without a delay: what takes no time on a device.
  void give_at_once(Work work) { push(std::move(work), Kind::at_once); }
  [[nodiscard]] std::shared_ptr<Mark> mark();
  /// What is given from now on is done after `mark`, which may be of any queue.
  void wait_for(std::shared_ptr<Mark> mark);
  [[nodiscard]] bool idle() const;
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  enum class Kind { kernel, at_once, mark };
  struct Item {
    Work work;
    Kind kind;
  };
  void push(Work work, Kind kind);
  void run();
  void delay();

  const std::string name_;
  const std::atomic<double>& delay_us_;
  const std::function<void(const char*)> failed_;
  std::mt19937_64 random_;  // of the thread below
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool working_ = false;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace rannc::standin
