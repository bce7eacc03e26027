#pragma once

#include <cstdint>
#include <memory>

// What the runtime asks of the device that a rank computes on: memory, the order of its work, and
// points in that order. The host itself is the trivial case, where work is done when the call that
// asks for it returns.

namespace rannc::comm {

/// Something that happens once: the end of work, the arrival of a message.
class Event {
 public:
  virtual ~Event() = default;
  /// Never blocks.
  [[nodiscard]] virtual bool done() = 0;
  /// The host waits.
  virtual void wait() = 0;
  /// The point in the order of a device's work that it is, for which that device's streams wait
  /// without the host; for an operation, where it ends. Null: only the host can wait.
  [[nodiscard]] virtual Event* on_device() { return nullptr; }
};

/// Work of a device, which is done in the order in which it is given, and perhaps long after.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Happens when all work that was given so far is done. Null: it is done.
  [[nodiscard]] virtual std::shared_ptr<Event> record() = 0;
  /// Work that is given from now on is done after `event`. The host goes on where the device can
  /// wait without it.
  virtual void wait(Event& event) = 0;
  /// What the device's libraries know it by; null: the host's.
  [[nodiscard]] virtual void* native() const { return nullptr; }
};

/// Memory that a message or a sum reads and writes.
struct Buffer {
  void* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<Event> ready;  ///< not to be touched before; null: it is ready
};

/// The stream of the host: nothing is ever left to be done, and the host does the waiting.
[[nodiscard]] std::shared_ptr<Stream> make_host_stream();

/// One whose work is done `delay_s` after it was given, and which counts: for tests of what relies
/// on its order. Used by one thread.
class LateStream final : public Stream {
 public:
  explicit LateStream(double delay_s) : delay_s_(delay_s) {}
  [[nodiscard]] std::shared_ptr<Event> record() override;
  void wait(Event& event) override;

  /// Times that record() and wait() were called.
  [[nodiscard]] int64_t recorded() const { return recorded_; }
  [[nodiscard]] int64_t waited() const { return waited_; }

 private:
  const double delay_s_;
  int64_t recorded_ = 0;
  int64_t waited_ = 0;
};

}  // namespace rannc::comm
