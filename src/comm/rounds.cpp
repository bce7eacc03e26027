#include "comm/rounds.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

/// Messages in flight keep it alive, so the memory stays even if nobody waits for the end.
class RunningRounds : public Operation, public std::enable_shared_from_this<RunningRounds> {
 public:
  RunningRounds(Communicator& comm, std::unique_ptr<Rounds> rounds, int64_t tag, Purpose purpose,
                std::shared_ptr<void> owner)
      : comm_(comm),
        tag_(tag),
        purpose_(purpose),
        rounds_(std::move(rounds)),
        owner_(std::move(owner)) {}

  /// Begins rounds until one has messages that have not arrived yet.
  void advance() {
    try {
      while (begin_round()) {
      }
    } catch (const std::exception& error) {
      const std::scoped_lock lock(mutex_);
      error_ = error.what();
      changed_.notify_all();
    }
  }

  bool done() override {
    const std::unique_lock lock(mutex_);
    if (finished_) return true;
    for (const Handle& message : messages_) (void)message->done();  // throws if the job has failed
    if (error_) throw CommError(*error_);
    return false;
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    while (!finished_) {
      const int64_t round = round_;
      const std::vector<Handle> messages = messages_;
      lock.unlock();
      // The deadline is theirs, and they know whom they wait for.
      for (const Handle& message : messages) message->wait();
      lock.lock();
      changed_.wait(lock, [&] { return finished_ || error_ || round_ != round; });
      if (error_) throw CommError(*error_);
    }
  }

 private:
  /// Whether all messages of the round have arrived already, so that this thread goes on.
  bool begin_round() {
    const std::vector<Message> round = rounds_->next();
    if (round.empty()) {
      finish();
      return false;
    }
    // This thread counts as one of them, so that nobody begins the next round before it is through.
    left_ = round.size() + 1;
    const auto arrived = [self = shared_from_this()] {
      if (--self->left_ == 0) self->advance();
    };
    std::vector<Handle> messages;
    std::exception_ptr error;
    try {
      for (const Message& message : round) messages.push_back(post(message, arrived));
    } catch (...) {
      error = std::current_exception();  // who waits has to wait for those before it, too
    }
    {
      const std::scoped_lock lock(mutex_);
      messages_.swap(messages);
      ++round_;
      changed_.notify_all();
    }
    if (error) std::rethrow_exception(error);
    return --left_ == 0;
  }

  Handle post(const Message& message, Communicator::Then then) {
    const auto& [sends, data, bytes, peer] = message;
    return sends ? comm_.send(data, bytes, peer, tag_, purpose_, std::move(then))
                 : comm_.receive(data, bytes, peer, tag_, purpose_, std::move(then));
  }

  void finish() {
    // Before anybody hears of it, so that the caller's reference is the last one; and without the
    // mutex, because what it owns may ask for other locks.
    rounds_.reset();
    owner_.reset();
    const std::scoped_lock lock(mutex_);
    finished_ = true;
    messages_.clear();
    changed_.notify_all();
  }

  Communicator& comm_;
  const int64_t tag_;
  const Purpose purpose_;

  // Only the thread that runs advance() touches these, one after the other.
  std::unique_ptr<Rounds> rounds_;
  std::shared_ptr<void> owner_;
  std::atomic<size_t> left_ = 0;  ///< messages of the round that have not arrived

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<Handle> messages_;  ///< of the round
  int64_t round_ = 0;
  bool finished_ = false;
  std::optional<std::string> error_;
};

}  // namespace

Handle start(Communicator& comm, std::unique_ptr<Rounds> rounds, int64_t tag, Purpose purpose,
             std::shared_ptr<void> owner) {
  const auto running =
      std::make_shared<RunningRounds>(comm, std::move(rounds), tag, purpose, std::move(owner));
  running->advance();
  return running;
}

}  // namespace rannc::comm
