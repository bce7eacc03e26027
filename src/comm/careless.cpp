#include "rannc/comm/careless.h"

#include <exception>
#include <functional>
#include <thread>
#include <utility>

namespace rannc::comm {
namespace {

/// Runs `work` to its end in another thread.
template <class Result>
Result elsewhere(const std::function<Result()>& work) {
  Result result{};
  std::exception_ptr error;
  std::thread([&] {
    try {
      result = work();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  return result;
}

class CarelessStream final : public Stream {
 public:
  CarelessStream(std::shared_ptr<Stream> stream, StreamMistake mistake)
      : stream_(std::move(stream)), mistake_(mistake) {}

  [[nodiscard]] std::shared_ptr<Event> record() override {
    if (mistake_ == StreamMistake::records_nothing) return nullptr;
    if (mistake_ != StreamMistake::of_another_thread) return stream_->record();
    return elsewhere<std::shared_ptr<Event>>([this] { return stream_->record(); });
  }
  void wait(Event& event) override {
    if (mistake_ == StreamMistake::waits_for_nothing) return;
    if (mistake_ != StreamMistake::of_another_thread) return stream_->wait(event);
    (void)elsewhere<bool>([&] {
      stream_->wait(event);
      return true;
    });
  }

 private:
  const std::shared_ptr<Stream> stream_;
  const StreamMistake mistake_;
};

class Forgotten final : public Operation {
 public:
  explicit Forgotten(Handle handle) : handle_(std::move(handle)) {}
  [[nodiscard]] bool done() override { return true; }
  void wait() override {}

 private:
  const Handle handle_;
};

class WaitsElsewhere final : public Operation {
 public:
  explicit WaitsElsewhere(Handle handle) : handle_(std::move(handle)) {}
  [[nodiscard]] bool done() override { return handle_->done(); }
  void wait() override {
    (void)elsewhere<bool>([this] {
      handle_->wait();
      return true;
    });
  }

 private:
  const Handle handle_;
};

class Careless final : public Communicator {
 public:
  Careless(std::shared_ptr<Communicator> under, MessageMistake mistake)
      : under_(std::move(under)), mistake_(mistake) {}

  [[nodiscard]] int rank() const override { return under_->rank(); }
  [[nodiscard]] int size() const override { return under_->size(); }
  [[nodiscard]] double timeout_s() const override { return under_->timeout_s(); }
  void set_timeout_s(double seconds) override { under_->set_timeout_s(seconds); }
  [[nodiscard]] std::string host() const override { return under_->host(); }
  void abort(const std::string& reason) override { under_->abort(reason); }
  [[nodiscard]] Handle send(const void* data, int64_t bytes, int to, int64_t tag, Purpose purpose,
                            Then then) override {
    return under_->send(data, bytes, to, tag, purpose, std::move(then));
  }
  [[nodiscard]] Handle receive(void* data, int64_t bytes, int from, int64_t tag, Purpose purpose,
                               Then then) override {
    return under_->receive(data, bytes, from, tag, purpose, std::move(then));
  }

  [[nodiscard]] Handle send_from(const Buffer& buffer, int to, int64_t tag,
                                 Purpose purpose) override {
    if (mistake_ == MessageMistake::forgets_sends) {
      return std::make_shared<Forgotten>(under_->send_from(buffer, to, tag, purpose));
    }
    return elsewhere<Handle>([&] { return under_->send_from(buffer, to, tag, purpose); });
  }
  [[nodiscard]] Handle receive_into(const Buffer& buffer, int from, int64_t tag,
                                    Purpose purpose) override {
    Handle handle = under_->receive_into(buffer, from, tag, purpose);
    if (mistake_ == MessageMistake::forgets_sends) return handle;
    return std::make_shared<WaitsElsewhere>(std::move(handle));
  }
  [[nodiscard]] Handle start_sum(const Buffer& buffer, Element element, std::span<const int> ranks,
                                 Purpose purpose, std::shared_ptr<void> owner,
                                 std::optional<int64_t> tag) override {
    return under_->start_sum(buffer, element, ranks, purpose, kept(std::move(owner)), tag);
  }
  [[nodiscard]] Handle start_reduce_scatter(const Buffer& buffer, Element element,
                                            std::span<const int> ranks, Purpose purpose,
                                            std::shared_ptr<void> owner,
                                            std::optional<int64_t> tag) override {
    return under_->start_reduce_scatter(buffer, element, ranks, purpose, kept(std::move(owner)),
                                        tag);
  }
  [[nodiscard]] Handle start_all_gather(const Buffer& buffer, Element element,
                                        std::span<const int> ranks, Purpose purpose,
                                        std::shared_ptr<void> owner,
                                        std::optional<int64_t> tag) override {
    return under_->start_all_gather(buffer, element, ranks, purpose, kept(std::move(owner)), tag);
  }

 private:
  [[nodiscard]] std::shared_ptr<void> kept(std::shared_ptr<void> owner) const {
    return mistake_ == MessageMistake::forgets_sends ? nullptr : std::move(owner);
  }

  const std::shared_ptr<Communicator> under_;
  const MessageMistake mistake_;
};

}  // namespace

std::shared_ptr<Stream> careless(std::shared_ptr<Stream> stream, StreamMistake mistake) {
  return std::make_shared<CarelessStream>(std::move(stream), mistake);
}

std::shared_ptr<Communicator> careless(std::shared_ptr<Communicator> communicator,
                                       MessageMistake mistake) {
  return std::make_shared<Careless>(std::move(communicator), mistake);
}

}  // namespace rannc::comm
