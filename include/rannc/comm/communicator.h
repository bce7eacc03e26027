#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rannc/comm/device.h"

namespace rannc::comm {

/// What an operation is for; printed when its peer does not answer in time.
struct Purpose {
  const char* what = "message";  ///< "activation", "gradient", "plan": a string literal
  int stage = -1;                ///< of the peer; -1: none
  int micro_batch = -1;
  bool back = false;  ///< of messages: a gradient's way, where both ways are apart
};

/// What will be sent and summed from a device's memory, so that nothing is connected inside a step.
struct Traffic {
  struct Sum {
    std::vector<int> ranks;        ///< ascending
    std::vector<int64_t> bytes;    ///< sizes that are known before
    std::vector<int64_t> sharded;  ///< of start_reduce_scatter() and start_all_gather()
    friend bool operator==(const Sum&, const Sum&) = default;
  };
  std::vector<std::pair<int, int>> messages;  ///< (from, to), forward; gradients come back
  std::vector<Sum> sums;                      ///< each set of ranks once
};

/// A range of bytes of a flat buffer.
struct Shard {
  int64_t begin = 0;
  int64_t bytes = 0;
};

enum class Element { float64, float32, float16, bfloat16, int64, int32, int8, uint8 };
[[nodiscard]] int64_t size_bytes(Element element);

/// One send, receive or reduction under way.
class Operation : public Event {
 public:
  /// Never blocks. Throws CommError once the operation or the job has failed.
  [[nodiscard]] bool done() override = 0;
  /// Blocks until done. Throws CommError naming the peer and the purpose at the deadline
  /// (Communicator::timeout_s), or when the job has been aborted.
  void wait() override = 0;
};
using Handle = std::shared_ptr<Operation>;

/// Messages between the ranks of a job. Any thread may call it; one thread of its own moves the
/// data, so a message makes progress while the caller computes.
///
/// Messages between two ranks with equal tags arrive in the order sent. Tags 0 .. 2^30-1 are the
/// caller's; higher ones belong to the collectives. No headers: both sides know the size.
class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual double timeout_s() const = 0;
  virtual void set_timeout_s(double seconds) = 0;
  /// Name of the machine this rank runs on.
  [[nodiscard]] virtual std::string host() const = 0;

  /// The memory belongs to the operation until it is done. `then`: called once, as soon as it is
  /// done, by the thread that has seen to it; never when the operation fails.
  using Then = std::function<void()>;
  [[nodiscard]] virtual Handle send(const void* data, int64_t bytes, int to, int64_t tag,
                                    Purpose purpose, Then then = {}) = 0;
  [[nodiscard]] virtual Handle receive(void* data, int64_t bytes, int from, int64_t tag,
                                       Purpose purpose, Then then = {}) = 0;

  // The same for what a device has computed, or will read. As they are here, they are for memory
  // that the host may touch, and wait until it is ready.
  [[nodiscard]] virtual Handle send_from(const Buffer& buffer, int to, int64_t tag,
                                         Purpose purpose);
  [[nodiscard]] virtual Handle receive_into(const Buffer& buffer, int from, int64_t tag,
                                            Purpose purpose);
  /// As start_all_reduce_sum().
  [[nodiscard]] virtual Handle start_sum(const Buffer& buffer, Element element,
                                         std::span<const int> ranks, Purpose purpose,
                                         std::shared_ptr<void> owner = {},
                                         std::optional<int64_t> tag = {});
  /// The same, but each rank gets its own_shard() of the sum, where it lies in `buffer`; the rest
  /// of the buffer is anything then. Half of what a sum moves.
  [[nodiscard]] virtual Handle start_reduce_scatter(const Buffer& buffer, Element element,
                                                    std::span<const int> ranks, Purpose purpose,
                                                    std::shared_ptr<void> owner = {},
                                                    std::optional<int64_t> tag = {});
  /// The way back: each rank's own_shard() of `buffer` comes to all of them. The other half.
  [[nodiscard]] virtual Handle start_all_gather(const Buffer& buffer, Element element,
                                                std::span<const int> ranks, Purpose purpose,
                                                std::shared_ptr<void> owner = {},
                                                std::optional<int64_t> tag = {});

  /// Whether these five have no tags, and may block until all their ranks have come: ranks then
  /// make all such calls in one order (plan::Program::order), from one thread at a time.
  [[nodiscard]] virtual bool is_in_order() const { return false; }
  /// Connects what will come. `scratch`: zeros, as long as the longest of Traffic::Sum::bytes and
  /// ::sharded; at least 8. Every rank calls it with equal arguments, and no message is under way.
  virtual void connect(const Traffic& /*traffic*/, const Buffer& /*scratch*/) {}

  /// Bytes of messages that this rank has sent for a purpose (Purpose::what); 0 where a transport
  /// does not count them.
  [[nodiscard]] virtual int64_t sent_bytes(const std::string& /*what*/) const { return 0; }

  /// Ends the job on all ranks with an exit code that is not 0; `reason` is printed first on the
  /// rank that calls it. `local`: the other ranks' waits throw CommError with the reason.
  virtual void abort(const std::string& reason) = 0;

  /// Tag of the next collective over `ranks` for `purpose`: its own for each call, so that
  /// concurrent ones never take each other's messages, and the same on all of `ranks`, as they make
  /// the calls for one purpose in the same order. 256 of them may run at the same time.
  [[nodiscard]] int64_t next_collective_tag(std::span<const int> ranks, const Purpose& purpose);

  /// What was under way with caller's tags may never be taken, because of an error (`reason`): who
  /// uses these tags again could take it for his own. The first reason stays.
  void leave_messages(const std::string& reason);
  /// That reason; empty if there is none.
  [[nodiscard]] std::string left_messages() const;

 private:
  struct Calls {
    std::vector<int> ranks;
    std::string what;
    int64_t count = 0;
  };
  std::mutex calls_mutex_;          // guards calls_; held for no other call
  std::map<int64_t, Calls> calls_;  // by hash of ranks and purpose
  mutable std::mutex left_mutex_;   // guards left_
  std::string left_;
};

// Collectives over `ranks` (ascending, this rank among them), built on send and receive. Every one
// of these ranks calls them; those with equal Purpose::what in the same order.

/// Elementwise sum, in place, the same bits on all ranks. Ring: 2 (r-1)/r of the data per link.
void all_reduce_sum(Communicator& comm, void* data, int64_t count, Element element,
                    std::span<const int> ranks, Purpose purpose);

/// The same without waiting: it goes on while the caller computes, on the thread that moves the
/// messages, and beside others. `owner`, if any, owns `data`, and is kept until it is done. With a
/// `tag` of the caller's, its order among other collectives does not matter. To be done or failed
/// before `comm` is destroyed.
[[nodiscard]] Handle start_all_reduce_sum(Communicator& comm, void* data, int64_t count,
                                          Element element, std::span<const int> ranks,
                                          Purpose purpose, std::shared_ptr<void> owner = {},
                                          std::optional<int64_t> tag = {});

/// This rank's of the equal parts into which `bytes` fall, one for each of `ranks` in their order.
/// They must be whole elements each: who makes the buffer fills it up.
[[nodiscard]] Shard own_shard(const Communicator& comm, int64_t bytes, Element element,
                              std::span<const int> ranks);

/// Communicator::start_reduce_scatter() of memory of the host, as start_all_reduce_sum(). A rank's
/// sums need not be those of all_reduce_sum() to the last bit: ranks are added in another order.
[[nodiscard]] Handle start_reduce_scatter_sum(Communicator& comm, void* data, int64_t count,
                                              Element element, std::span<const int> ranks,
                                              Purpose purpose, std::shared_ptr<void> owner = {},
                                              std::optional<int64_t> tag = {});
/// Communicator::start_all_gather() of memory of the host.
[[nodiscard]] Handle start_all_gather_shards(Communicator& comm, void* data, int64_t count,
                                             Element element, std::span<const int> ranks,
                                             Purpose purpose, std::shared_ptr<void> owner = {},
                                             std::optional<int64_t> tag = {});

/// Every rank's bytes, [index in ranks].
[[nodiscard]] std::vector<std::string> all_gather(Communicator& comm, const std::string& bytes,
                                                  std::span<const int> ranks, Purpose purpose);

/// The same for pieces of equal size, without copies through strings: rank number i of `ranks`
/// gives `bytes` at `mine`, which arrive everywhere at all + i * bytes. One round of messages among
/// few ranks, O(log ranks) among many.
void all_gather_into(Communicator& comm, const void* mine, int64_t bytes, void* all,
                     std::span<const int> ranks, Purpose purpose);
/// The same under a tag of the caller's: for one that other collectives over `ranks` may overtake
/// on some of them.
void all_gather_into(Communicator& comm, const void* mine, int64_t bytes, void* all,
                     std::span<const int> ranks, int64_t tag, Purpose purpose);

/// The root's bytes; others pass anything.
[[nodiscard]] std::string broadcast(Communicator& comm, const std::string& bytes, int root,
                                    std::span<const int> ranks, Purpose purpose);

/// In place, without copies through strings.
void broadcast_into(Communicator& comm, void* data, int64_t bytes, int root,
                    std::span<const int> ranks, Purpose purpose);

void barrier(Communicator& comm, std::span<const int> ranks, Purpose purpose);

}  // namespace rannc::comm
