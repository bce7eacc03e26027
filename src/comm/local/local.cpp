#include "rannc/comm/local.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <tuple>
#include <utility>

#include "comm/timeout.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

class LocalOperation;
using Post = std::shared_ptr<LocalOperation>;

/// Sends or receives of one (from, to, tag) that the other side has not matched; never both.
struct Channel {
  std::deque<Post> sends;
  std::deque<Post> receives;
};

/// What the ranks of one make_local share. Everything is guarded by `mutex`.
struct Hub {
  struct Rank {
    std::list<Waiting> waits;        ///< one per blocked thread, the longest first
    std::optional<Waiting> gave_up;  ///< the wait that reached its deadline
    bool left = false;
  };

  explicit Hub(int size) : ranks(static_cast<size_t>(size)) {}

  /// What is to be called without the mutex, because it has finished operations.
  [[nodiscard]] std::vector<Communicator::Then> post(const Post& operation);
  /// Takes back what `rank` has posted, because its memory may go: it failed or left. Returns what
  /// will never be called, to be destroyed without the mutex.
  std::vector<Communicator::Then> withdraw(int rank, const std::string& reason);
  [[nodiscard]] PeerState state_of(int rank) const;

  std::mutex mutex;
  std::condition_variable changed;  ///< some operation is done or failed
  std::map<std::tuple<int, int, int64_t>, Channel> channels;
  std::vector<Rank> ranks;
  std::optional<std::string> aborted;  ///< the reason
};

class LocalOperation : public Operation {
 public:
  LocalOperation(std::shared_ptr<Hub> hub, int rank, double timeout_s, bool sends, void* data,
                 int64_t bytes, int peer, int64_t tag, Purpose purpose, Communicator::Then then)
      : sends(sends),
        data(data),
        bytes(bytes),
        peer(peer),
        tag(tag),
        rank(rank),
        then(std::move(then)),
        hub_(std::move(hub)),
        timeout_s_(timeout_s),
        purpose_(purpose) {}

  bool done() override {
    const std::scoped_lock lock(hub_->mutex);
    return finished_or_throw();
  }

  void wait() override {
    std::vector<Communicator::Then> withdrawn;  // outlives the lock
    std::unique_lock lock(hub_->mutex);
    auto& waits = hub_->ranks[static_cast<size_t>(rank)].waits;
    const auto entry = waits.insert(
        waits.end(), {sends, peer, purpose_.what, purpose_.stage, purpose_.micro_batch});
    const bool in_time =
        hub_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s_),
                               [&] { return finished || failed || hub_->aborted; });
    std::string message;
    if (!in_time) {
      message = explain_timeout(rank, timeout_s_, *entry,
                                [&](int asked) { return hub_->state_of(asked); });
      hub_->ranks[static_cast<size_t>(rank)].gave_up = *entry;
      withdrawn = hub_->withdraw(rank, message);
    }
    waits.erase(entry);
    if (!in_time) throw CommError(message);
    finished_or_throw();
  }

  const bool sends;
  void* const data;
  const int64_t bytes;
  const int peer;
  const int64_t tag;
  const int rank;
  Communicator::Then then;  ///< guarded by the hub's mutex, as the next
  bool finished = false;
  std::optional<std::string> failed;  ///< the reason

 private:
  bool finished_or_throw() const {
    if (finished) return true;
    if (failed) throw CommError(*failed);
    if (hub_->aborted) throw CommError(*hub_->aborted);
    return false;
  }

  const std::shared_ptr<Hub> hub_;
  const double timeout_s_;
  const Purpose purpose_;
};

std::vector<Communicator::Then> Hub::post(const Post& operation) {
  if (aborted) throw CommError(*aborted);
  const auto key = operation->sends ? std::tuple(operation->rank, operation->peer, operation->tag)
                                    : std::tuple(operation->peer, operation->rank, operation->tag);
  Channel& channel = channels[key];
  auto& matching = operation->sends ? channel.receives : channel.sends;
  if (matching.empty()) {
    (operation->sends ? channel.sends : channel.receives).push_back(operation);
    return {};
  }
  std::vector<Communicator::Then> to_call;
  const Post other = std::move(matching.front());
  matching.pop_front();
  if (channel.sends.empty() && channel.receives.empty()) channels.erase(key);
  const Post& send = operation->sends ? operation : other;
  const Post& receive = operation->sends ? other : operation;
  if (send->bytes != receive->bytes) {
    const std::string message =
        fmt::format("rank {} sends {} bytes with tag {} to rank {}, which expects {} bytes",
                    send->rank, send->bytes, send->tag, receive->rank, receive->bytes);
    send->failed = receive->failed = message;
  } else {
    // Under the mutex, so that nobody takes his memory back in between.
    if (send->bytes > 0) std::memcpy(receive->data, send->data, static_cast<size_t>(send->bytes));
    for (const Post& post : {send, receive}) {
      post->finished = true;
      if (post->then) to_call.push_back(std::exchange(post->then, {}));
    }
  }
  changed.notify_all();
  return to_call;
}

std::vector<Communicator::Then> Hub::withdraw(int rank, const std::string& reason) {
  std::vector<Communicator::Then> withdrawn;
  for (auto& [key, channel] : channels) {
    for (auto* posts : {&channel.sends, &channel.receives}) {
      std::erase_if(*posts, [&](const Post& post) {
        if (post->rank != rank) return false;
        post->failed = reason;
        withdrawn.push_back(std::exchange(post->then, {}));
        return true;
      });
    }
  }
  changed.notify_all();
  return withdrawn;
}

PeerState Hub::state_of(int rank) const {
  const Rank& peer = ranks[static_cast<size_t>(rank)];
  if (peer.left) return {PeerState::Kind::left, {}};
  if (peer.gave_up) return {PeerState::Kind::waiting, *peer.gave_up};
  if (peer.waits.empty()) return {PeerState::Kind::busy, {}};
  return {PeerState::Kind::waiting, peer.waits.front()};
}

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Hub> hub, int rank, double timeout_s)
      : hub_(std::move(hub)), rank_(rank), timeout_s_(timeout_s) {}

  ~LocalCommunicator() override {
    std::vector<Then> withdrawn;  // outlives the lock
    const std::scoped_lock lock(hub_->mutex);
    hub_->ranks[static_cast<size_t>(rank_)].left = true;
    withdrawn = hub_->withdraw(rank_, fmt::format("rank {} has left", rank_));
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(hub_->ranks.size()); }
  [[nodiscard]] double timeout_s() const override { return timeout_s_; }
  void set_timeout_s(double seconds) override { timeout_s_ = seconds; }

  [[nodiscard]] std::string host() const override {
    std::array<char, 256> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
  }

  Handle send(const void* data, int64_t bytes, int to, int64_t tag, Purpose purpose,
              Then then) override {
    // Only read.
    return post(true, const_cast<void*>(data), bytes, to, tag, purpose, std::move(then));
  }

  Handle receive(void* data, int64_t bytes, int from, int64_t tag, Purpose purpose,
                 Then then) override {
    return post(false, data, bytes, from, tag, purpose, std::move(then));
  }

  void abort(const std::string& reason) override {
    const std::scoped_lock lock(hub_->mutex);
    if (!hub_->aborted) hub_->aborted = fmt::format("rank {} aborted: {}", rank_, reason);
    hub_->changed.notify_all();
  }

 private:
  Handle post(bool sends, void* data, int64_t bytes, int peer, int64_t tag, Purpose purpose,
              Then then) {
    RANNC_CHECK(peer >= 0 && peer < size() && tag >= 0 && bytes >= 0,
                fmt::format("a message of {} bytes with tag {} between the ranks {} and {} of {}",
                            bytes, tag, rank_, peer, size()));
    auto operation = std::make_shared<LocalOperation>(hub_, rank_, timeout_s_, sends, data, bytes,
                                                      peer, tag, purpose, std::move(then));
    std::vector<Then> to_call;
    {
      const std::scoped_lock lock(hub_->mutex);
      to_call = hub_->post(operation);
    }
    for (const Then& call : to_call) call();
    return operation;
  }

  const std::shared_ptr<Hub> hub_;
  const int rank_;
  std::atomic<double> timeout_s_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local(int ranks, double timeout_s) {
  RANNC_CHECK(ranks >= 1, fmt::format("a job of {} ranks", ranks));
  const auto hub = std::make_shared<Hub>(ranks);
  std::vector<std::unique_ptr<Communicator>> result;
  for (int rank = 0; rank < ranks; ++rank) {
    result.push_back(std::make_unique<LocalCommunicator>(hub, rank, timeout_s));
  }
  return result;
}

}  // namespace rannc::comm
