#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "rannc/ops/backend.h"
#include "rannc/runtime/device_stream.h"
#include "rannc/util/error.h"
#include "runtime/device/host_memory.h"
#include "runtime/device/stream_event.h"

namespace rannc::runtime {
namespace {

using comm::Buffer;
using comm::Handle;
using comm::Purpose;

/// A message travels in pieces of this size, equal on all ranks, of which so many are copied to the
/// host before the first has been sent on: one is copied while another one travels.
/// tuned by: no measurement is known.
/// without it: smaller pieces cost a message each, larger ones are copied and sent one after the
/// other; with more ahead, pinned memory goes to one message.
constexpr int64_t kCopiedPieceBytes = int64_t{4} << 20;
constexpr size_t kPiecesAhead = 2;

/// Bytes of a device's memory as a tensor that does not own them.
at::Tensor alias(const Buffer& buffer, int64_t begin, int64_t bytes, c10::Device device) {
  return at::from_blob(
      static_cast<char*>(buffer.data) + begin, {bytes}, [](void*) {},
      at::TensorOptions().dtype(at::kByte).device(device), device);
}

/// Of the host, shared with whom reads or writes it.
using Memory = std::shared_ptr<at::Tensor>;

std::string describe(const Purpose& purpose) {
  return purpose.micro_batch < 0 ? std::string(purpose.what)
                                 : c10::str(purpose.what, " of micro-batch ", purpose.micro_batch);
}

/// Operations of the host that another thread begins, once the device has copied what they send.
class Begun {
 public:
  explicit Begun(std::string what) : what_(std::move(what)) {}

  /// What `memory` holds is kept as long as this lives, unless it is given back before.
  void set(std::vector<Handle> handles, std::vector<Memory> memory) {
    const std::scoped_lock lock(mutex_);
    handles_ = std::move(handles);
    memory_ = std::move(memory);
    begun_ = true;
    changed_.notify_all();
  }
  void fail(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    error_ = std::move(error);
    changed_.notify_all();
  }
  [[nodiscard]] bool done() {
    {
      const std::scoped_lock lock(mutex_);
      if (error_) std::rethrow_exception(error_);
      if (!begun_) return false;
    }
    return std::ranges::all_of(handles_, [](const Handle& handle) { return handle->done(); });
  }
  /// Throws CommError after `timeout_s` seconds in which the device has not copied.
  void wait(int rank, double timeout_s) {
    {
      std::unique_lock lock(mutex_);
      const bool came = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                          [this] { return begun_ || error_; });
      if (error_) std::rethrow_exception(error_);
      if (!came) {
        throw CommError(c10::str("rank ", rank, " waited ", timeout_s, " s for its device to copy ",
                                 "the ", what_, " to the host: the device does not come to it"));
      }
    }
    for (const Handle& handle : handles_) handle->wait();
  }
  /// Of the first operation; only after wait().
  [[nodiscard]] at::Tensor& memory() const { return *memory_.front(); }

 private:
  const std::string what_;
  std::mutex mutex_;  // guards the others; what is begun does not change any more
  std::condition_variable changed_;
  bool begun_ = false;
  std::vector<Handle> handles_;
  std::vector<Memory> memory_;
  std::exception_ptr error_;
};

/// A thread that does what has to wait for the device, in the order in which it was given.
class Mover {
 public:
  explicit Mover(c10::Device device) : thread_([this, device] { run(device); }) {}
  ~Mover() {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// `work`, which throws nothing, is given the stream on which it copies.
  void give(std::function<void(const c10::Stream&)> work) {
    {
      const std::scoped_lock lock(mutex_);
      items_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run(c10::Device device) {
    pthread_setname_np(pthread_self(), "rannc-staged");
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.setDevice(device);
    const at::NoGradGuard no_grad;
    std::optional<c10::Stream> copies;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !items_.empty(); });
      if (items_.empty()) return;
      auto work = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      if (!copies) copies = ops::side_stream(device);
      work(*copies);
      work = {};
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(const c10::Stream&)>> items_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

/// What operations need, which may outlive their communicator.
struct Ends {
  std::shared_ptr<comm::Communicator> host;
  c10::Device device;
  std::shared_ptr<HostMemory> memory;
};

/// A part of a buffer on its way to the host.
struct Piece {
  Piece(const Ends& ends, const Buffer& buffer, int64_t begin, int64_t bytes,
        const c10::Stream& copies)
      : memory(ends.memory->take(bytes)) {
    copy(ends, buffer, {begin, bytes}, 0, copies);
  }
  /// Memory for the whole buffer, to which a part comes.
  Piece(const Ends& ends, const Buffer& buffer, comm::Shard part, const c10::Stream& copies)
      : memory(ends.memory->take(buffer.bytes)) {
    copy(ends, buffer, part, part.begin, copies);
  }
  void copy(const Ends& ends, const Buffer& buffer, comm::Shard part, int64_t place,
            const c10::Stream& copies) {
    const c10::StreamGuard guard(copies);
    memory.narrow(0, place, part.bytes)
        .copy_(alias(buffer, part.begin, part.bytes, ends.device), /*non_blocking=*/true);
    copied = std::make_shared<StreamEvent>(copies);
  }
  at::Tensor memory;
  std::shared_ptr<StreamEvent> copied;
};

/// Sends a buffer piece by piece: the next one is copied while this one travels.
void send_pieces(const Ends& ends, const Buffer& buffer, int to, int64_t tag, Purpose purpose,
                 const c10::Stream& copies, Begun& begun) {
  std::vector<Handle> handles;
  std::vector<Memory> memory;
  std::deque<Piece> ahead;
  for (int64_t next = 0; next < buffer.bytes || !ahead.empty();) {
    while (next < buffer.bytes && ahead.size() < kPiecesAhead) {
      const int64_t bytes = std::min(kCopiedPieceBytes, buffer.bytes - next);
      ahead.emplace_back(ends, buffer, next, bytes, copies);
      next += bytes;
    }
    Piece piece = std::move(ahead.front());
    ahead.pop_front();
    piece.copied->wait();
    const auto shared = std::make_shared<at::Tensor>(std::move(piece.memory));
    handles.push_back(ends.host->send(
        shared->const_data_ptr(), shared->numel(), to, tag, purpose,
        [of = ends.memory, shared] { of->free(std::exchange(*shared, at::Tensor())); }));
    memory.push_back(shared);
  }
  begun.set(std::move(handles), std::move(memory));
}

/// Issues the copy of what has come, on the current stream, which is not waited for: from `begin`
/// of `memory` to `place` of the buffer.
void copy_to_device(const Ends& ends, const Buffer& buffer, comm::Shard place, at::Tensor memory,
                    int64_t begin) {
  const at::NoGradGuard no_grad;
  const c10::DeviceGuard guard(ends.device);
  const c10::Stream now = c10::impl::VirtualGuardImpl(ends.device.type()).getStream(ends.device);
  block(now, buffer.ready.get());
  alias(buffer, place.begin, place.bytes, ends.device)
      .copy_(memory.narrow(0, begin, place.bytes), /*non_blocking=*/true);
  ends.memory->free(std::move(memory), std::make_shared<StreamEvent>(now));
}

class Sent final : public comm::Operation {
 public:
  Sent(std::shared_ptr<Begun> begun, const Ends& ends) : begun_(std::move(begun)), ends_(ends) {}
  [[nodiscard]] bool done() override { return begun_->done(); }
  void wait() override { begun_->wait(ends_.host->rank(), ends_.host->timeout_s()); }

 private:
  const std::shared_ptr<Begun> begun_;
  const Ends ends_;
};

/// Whoever waits first issues the copies to the device.
class Received final : public comm::Operation {
 public:
  struct Part {
    Handle handle;
    int64_t begin;
    at::Tensor memory;
  };
  Received(std::vector<Part> parts, Buffer buffer, const Ends& ends)
      : parts_(std::move(parts)), buffer_(std::move(buffer)), ends_(ends) {}

  [[nodiscard]] bool done() override {
    return std::ranges::all_of(parts_, [](const Part& part) { return part.handle->done(); });
  }
  void wait() override {
    for (Part& part : parts_) {
      if (!part.memory.defined()) continue;
      part.handle->wait();
      const comm::Shard place{part.begin, part.memory.numel()};
      copy_to_device(ends_, buffer_, place, std::exchange(part.memory, at::Tensor()), /*begin=*/0);
    }
  }

 private:
  std::vector<Part> parts_;  // their memory belongs to the thread that computes, as wait() does
  const Buffer buffer_;
  const Ends ends_;
};

/// A collective of the host, of whose result `back` is copied to the device.
class Summed final : public comm::Operation {
 public:
  Summed(std::shared_ptr<Begun> begun, Buffer buffer, comm::Shard back, const Ends& ends,
         std::shared_ptr<void> owner)
      : begun_(std::move(begun)),
        buffer_(std::move(buffer)),
        back_(back),
        ends_(ends),
        owner_(std::move(owner)) {}
  [[nodiscard]] bool done() override { return begun_->done(); }
  void wait() override {
    if (copied_) return;
    begun_->wait(ends_.host->rank(), ends_.host->timeout_s());
    copy_to_device(ends_, buffer_, back_, std::exchange(begun_->memory(), at::Tensor()),
                   back_.begin);
    copied_ = true;
  }

 private:
  const std::shared_ptr<Begun> begun_;
  const Buffer buffer_;
  const comm::Shard back_;
  const Ends ends_;
  const std::shared_ptr<void> owner_;
  bool copied_ = false;  // belongs to the thread that computes, as wait() does
};

class Staged final : public comm::Communicator {
 public:
  Staged(std::shared_ptr<comm::Communicator> host, c10::Device device, int64_t pinned_bytes)
      : host_(std::move(host)),
        ends_{host_, device, std::make_shared<HostMemory>(pinned_bytes, device)},
        mover_(device) {}

  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int size() const override { return host_->size(); }
  [[nodiscard]] double timeout_s() const override { return host_->timeout_s(); }
  void set_timeout_s(double seconds) override { host_->set_timeout_s(seconds); }
  [[nodiscard]] std::string host() const override { return host_->host(); }
  void abort(const std::string& reason) override { host_->abort(reason); }
  [[nodiscard]] Handle send(const void* data, int64_t bytes, int to, int64_t tag, Purpose purpose,
                            Then then) override {
    return host_->send(data, bytes, to, tag, purpose, std::move(then));
  }
  [[nodiscard]] Handle receive(void* data, int64_t bytes, int from, int64_t tag, Purpose purpose,
                               Then then) override {
    return host_->receive(data, bytes, from, tag, purpose, std::move(then));
  }

  [[nodiscard]] Handle send_from(const Buffer& buffer, int to, int64_t tag,
                                 Purpose purpose) override {
    return std::make_shared<Sent>(begin(purpose, buffer,
                                        [=, ends = ends_](const c10::Stream& copies, Begun& begun) {
                                          send_pieces(ends, buffer, to, tag, purpose, copies,
                                                      begun);
                                        }),
                                  ends_);
  }

  [[nodiscard]] Handle receive_into(const Buffer& buffer, int from, int64_t tag,
                                    Purpose purpose) override {
    std::vector<Received::Part> parts;
    for (int64_t begin = 0; begin < buffer.bytes; begin += kCopiedPieceBytes) {
      at::Tensor memory = ends_.memory->take(std::min(kCopiedPieceBytes, buffer.bytes - begin));
      Handle handle = host_->receive(memory.mutable_data_ptr(), memory.numel(), from, tag, purpose,
                                     /*then=*/{});
      parts.push_back({std::move(handle), begin, std::move(memory)});
    }
    return std::make_shared<Received>(std::move(parts), buffer, ends_);
  }

  [[nodiscard]] Handle start_sum(const Buffer& buffer, comm::Element element,
                                 std::span<const int> ranks, Purpose purpose,
                                 std::shared_ptr<void> owner, std::optional<int64_t> tag) override {
    const comm::Shard all{0, buffer.bytes};
    return collective(&comm::start_all_reduce_sum, {all, all}, buffer, element, ranks, purpose,
                      std::move(owner), tag);
  }
  [[nodiscard]] Handle start_reduce_scatter(const Buffer& buffer, comm::Element element,
                                            std::span<const int> ranks, Purpose purpose,
                                            std::shared_ptr<void> owner,
                                            std::optional<int64_t> tag) override {
    const comm::Shard mine = comm::own_shard(*host_, buffer.bytes, element, ranks);
    return collective(&comm::start_reduce_scatter_sum, {{0, buffer.bytes}, mine}, buffer, element,
                      ranks, purpose, std::move(owner), tag);
  }
  [[nodiscard]] Handle start_all_gather(const Buffer& buffer, comm::Element element,
                                        std::span<const int> ranks, Purpose purpose,
                                        std::shared_ptr<void> owner,
                                        std::optional<int64_t> tag) override {
    const comm::Shard mine = comm::own_shard(*host_, buffer.bytes, element, ranks);
    return collective(&comm::start_all_gather_shards, {mine, {0, buffer.bytes}}, buffer, element,
                      ranks, purpose, std::move(owner), tag);
  }

 private:
  /// What of a buffer is copied to the host before a collective, and back after it.
  struct Copies {
    comm::Shard there;
    comm::Shard back;
  };

  /// In one piece: pieces would have to be told apart, as ranks begin sums in orders of their own.
  Handle collective(decltype(&comm::start_all_reduce_sum) start, Copies copied,
                    const Buffer& buffer, comm::Element element, std::span<const int> ranks,
                    Purpose purpose, std::shared_ptr<void> owner, std::optional<int64_t> tag) {
    // Told apart here, where all ranks come in one order, and from the host's sums of this one.
    const int64_t of_all = tag ? *tag : next_collective_tag(ranks, purpose);
    const auto work = [=, ends = ends_, there = copied.there,
                       over = std::vector<int>(ranks.begin(), ranks.end())](
                          const c10::Stream& copies, Begun& begun) {
      Piece whole(ends, buffer, there, copies);
      whole.copied->wait();
      const auto shared = std::make_shared<at::Tensor>(std::move(whole.memory));
      begun.set(
          {start(*ends.host, shared->mutable_data_ptr(), buffer.bytes / comm::size_bytes(element),
                 element, over, purpose, shared, of_all)},
          {shared});
    };
    return std::make_shared<Summed>(begin(purpose, buffer, work), buffer, copied.back, ends_,
                                    std::move(owner));
  }

  /// Who gave `buffer` keeps its memory until the operation is done.
  std::shared_ptr<Begun> begin(Purpose purpose, const Buffer& buffer,
                               std::function<void(const c10::Stream&, Begun&)> work) {
    auto begun = std::make_shared<Begun>(describe(purpose));
    mover_.give([begun, ready = buffer.ready, work = std::move(work), host = host_,
                 purpose](const c10::Stream& copies) {
      try {
        block(copies, ready.get());
        work(copies, *begun);
      } catch (const c10::Error& error) {
        const std::string reason =
            c10::str("rank ", host->rank(), " could not copy the ", describe(purpose),
                     " from its device to the host: ", error.what_without_backtrace());
        begun->fail(std::make_exception_ptr(CommError(reason)));
        // This rank may be waiting for a peer that waits for what is not sent.
        host->abort(reason);
      } catch (...) {
        begun->fail(std::current_exception());
      }
    });
    return begun;
  }

  const std::shared_ptr<comm::Communicator> host_;
  const Ends ends_;
  Mover mover_;  // last: it uses the others
};

}  // namespace

std::shared_ptr<comm::Communicator> staged(std::shared_ptr<comm::Communicator> host,
                                           c10::Device device, int64_t pinned_bytes) {
  if (device.is_cpu()) return host;
  return std::make_shared<Staged>(std::move(host), device, pinned_bytes);
}

}  // namespace rannc::runtime
