#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "rannc/runtime/device_stream.h"
#include "runtime/device/stream_event.h"

namespace rannc::runtime {
namespace {

using comm::Buffer;
using comm::Handle;
using comm::Purpose;

/// Something of the host that is begun by another thread.
class Begun {
 public:
  void set(Handle handle) {
    const std::scoped_lock lock(mutex_);
    handle_ = std::move(handle);
    changed_.notify_all();
  }
  void fail(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    error_ = std::move(error);
    changed_.notify_all();
  }
  /// Null: not yet.
  [[nodiscard]] Handle now() {
    const std::scoped_lock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    return handle_;
  }
  [[nodiscard]] Handle wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return handle_ || error_; });
    if (error_) std::rethrow_exception(error_);
    return handle_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Handle handle_;
  std::exception_ptr error_;
};

/// Begins what has to wait for the device, in the order in which it was given.
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

  std::shared_ptr<Begun> begin_after(std::shared_ptr<comm::Event> event,
                                     std::function<Handle()> begin) {
    auto begun = std::make_shared<Begun>();
    {
      const std::scoped_lock lock(mutex_);
      items_.push_back({std::move(event), std::move(begin), begun});
    }
    changed_.notify_one();
    return begun;
  }

 private:
  struct Item {
    std::shared_ptr<comm::Event> event;
    std::function<Handle()> begin;
    std::shared_ptr<Begun> begun;
  };

  void run(c10::Device device) {
    pthread_setname_np(pthread_self(), "rannc-staged");
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !items_.empty(); });
      if (items_.empty()) return;
      Item item = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      try {
        item.event->wait();
        item.begun->set(item.begin());
      } catch (...) {
        item.begun->fail(std::current_exception());
      }
      item = {};
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

class Sent final : public comm::Operation {
 public:
  Sent(std::shared_ptr<Begun> begun, at::Tensor pinned)
      : begun_(std::move(begun)), pinned_(std::move(pinned)) {}
  [[nodiscard]] bool done() override {
    const Handle handle = begun_->now();
    return handle && handle->done();
  }
  void wait() override { begun_->wait()->wait(); }

 private:
  const std::shared_ptr<Begun> begun_;
  const at::Tensor pinned_;
};

/// What comes to the device: whoever waits first issues the copy.
class Arriving final : public comm::Operation {
 public:
  Arriving(std::function<Handle(bool)> handle, at::Tensor pinned, Buffer buffer, c10::Device device,
           std::shared_ptr<void> owner = {})
      : handle_(std::move(handle)),
        pinned_(std::move(pinned)),
        buffer_(std::move(buffer)),
        device_(device),
        owner_(std::move(owner)) {}

  [[nodiscard]] bool done() override {
    const Handle handle = handle_(/*wait=*/false);
    return handle && handle->done();
  }
  void wait() override {
    if (copied_) return;
    handle_(/*wait=*/true)->wait();
    const at::NoGradGuard no_grad;
    const c10::DeviceGuard guard(device_);
    block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_), buffer_.ready.get());
    at::from_blob(
        buffer_.data, {buffer_.bytes}, [](void*) {}, options(device_), device_)
        .copy_(pinned_, /*non_blocking=*/true);
    copied_ = true;
    pinned_.reset();  // comes back to others after the copy
  }

  static at::TensorOptions options(c10::Device device) {
    return at::TensorOptions().dtype(at::kByte).device(device);
  }

 private:
  const std::function<Handle(bool)> handle_;
  at::Tensor pinned_;
  const Buffer buffer_;
  const c10::Device device_;
  const std::shared_ptr<void> owner_;
  bool copied_ = false;  // belongs to the thread that computes, as wait() does
};

class Staged final : public comm::Communicator {
 public:
  Staged(std::shared_ptr<comm::Communicator> host, c10::Device device)
      : host_(std::move(host)), device_(device), mover_(device) {}

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
    at::Tensor pinned = empty_pinned(buffer.bytes);
    auto begun = mover_.begin_after(copy_to_host(buffer, pinned), [=, this] {
      return host_->send(pinned.const_data_ptr(), pinned.numel(), to, tag, purpose);
    });
    return std::make_shared<Sent>(std::move(begun), std::move(pinned));
  }

  [[nodiscard]] Handle receive_into(const Buffer& buffer, int from, int64_t tag,
                                    Purpose purpose) override {
    at::Tensor pinned = empty_pinned(buffer.bytes);
    Handle handle =
        host_->receive(pinned.mutable_data_ptr(), buffer.bytes, from, tag, purpose, Then());
    return std::make_shared<Arriving>([handle = std::move(handle)](bool) { return handle; },
                                      std::move(pinned), buffer, device_);
  }

  [[nodiscard]] Handle start_sum(const Buffer& buffer, comm::Element element,
                                 std::span<const int> ranks, Purpose purpose,
                                 std::shared_ptr<void> owner, std::optional<int64_t> tag) override {
    at::Tensor pinned = empty_pinned(buffer.bytes);
    // Told apart here, where all ranks come in one order.
    const int64_t of_all = tag ? *tag : host_->next_collective_tag(ranks, purpose);
    auto begun = mover_.begin_after(copy_to_host(buffer, pinned),
                                    [=, this, over = std::vector<int>(ranks.begin(), ranks.end())] {
                                      return comm::start_all_reduce_sum(
                                          *host_, pinned.mutable_data_ptr(),
                                          buffer.bytes / comm::size_bytes(element), element, over,
                                          purpose, std::make_shared<at::Tensor>(pinned), of_all);
                                    });
    return std::make_shared<Arriving>(
        [begun = std::move(begun)](bool wait) { return wait ? begun->wait() : begun->now(); },
        std::move(pinned), buffer, device_, std::move(owner));
  }

 private:
  at::Tensor empty_pinned(int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }

  /// Beside what the device computes; who gave `buffer` keeps its memory until the operation ends.
  std::shared_ptr<comm::Event> copy_to_host(const Buffer& buffer, const at::Tensor& pinned) {
    const at::NoGradGuard no_grad;
    const c10::DeviceGuard device_guard(device_);
    if (!copies_) {
      copies_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_, true);
    }
    block(*copies_, buffer.ready.get());
    const c10::StreamGuard stream_guard(*copies_);
    const at::Tensor from = at::from_blob(
        buffer.data, {buffer.bytes}, [](void*) {}, Arriving::options(device_), device_);
    pinned.copy_(from, /*non_blocking=*/true);
    return std::make_shared<StreamEvent>(*copies_);
  }

  const std::shared_ptr<comm::Communicator> host_;
  const c10::Device device_;
  std::optional<c10::Stream> copies_;  // one thread at a time issues
  Mover mover_;                        // last: it uses the host's communicator
};

}  // namespace

std::shared_ptr<comm::Communicator> staged(std::shared_ptr<comm::Communicator> host,
                                           c10::Device device) {
  if (device.is_cpu()) return host;
  return std::make_shared<Staged>(std::move(host), device);
}

}  // namespace rannc::runtime
