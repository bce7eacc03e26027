#include "rannc/comm/device.h"

#include <chrono>
#include <thread>

namespace rannc::comm {
namespace {

using Clock = std::chrono::steady_clock;

class HostStream final : public Stream {
 public:
  [[nodiscard]] std::shared_ptr<Event> record() override { return nullptr; }
  void wait(Event& event) override { event.wait(); }
};

/// Happens at a time.
class LateEvent final : public Event {
 public:
  explicit LateEvent(Clock::time_point time) : time_(time) {}
  [[nodiscard]] bool done() override { return Clock::now() >= time_; }
  void wait() override { std::this_thread::sleep_until(time_); }

 private:
  const Clock::time_point time_;
};

}  // namespace

std::shared_ptr<Stream> make_host_stream() { return std::make_shared<HostStream>(); }

std::shared_ptr<Event> LateStream::record() {
  ++recorded_;
  const std::chrono::duration<double> delay(delay_s_);
  return std::make_shared<LateEvent>(Clock::now() +
                                     std::chrono::duration_cast<Clock::duration>(delay));
}

void LateStream::wait(Event& event) {
  ++waited_;
  event.wait();
}

}  // namespace rannc::comm
