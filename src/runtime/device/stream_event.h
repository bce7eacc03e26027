#pragma once

#include <c10/core/Event.h>

#include <utility>

#include "rannc/comm/device.h"
#include "rannc/ops/backend.h"

namespace rannc::runtime {

/// A point in the order of an accelerator's stream. Where the backend has no events, whoever makes
/// one waits for the stream.
class StreamEvent final : public comm::Event {
 public:
  explicit StreamEvent(const c10::Stream& stream) : event_(stream.device_type()) {
    // One that was never recorded is done, and nobody waits for it.
    if (ops::backend_of(stream.device()).events) {
      event_.record(stream);
    } else {
      ops::wait_for(stream);
    }
  }
  [[nodiscard]] bool done() override { return event_.query(); }
  void wait() override { event_.synchronize(); }
  [[nodiscard]] comm::Event* on_device() override { return this; }
  /// What `stream` is given from now on is done after it.
  void block(const c10::Stream& stream) const { event_.block(stream); }

 private:
  c10::Event event_;
};

/// What `stream` is given from now on is done after `event`, if any; the host waits for one that is
/// not an accelerator's.
inline void block(const c10::Stream& stream, comm::Event* event) {
  if (event == nullptr) return;
  if (const auto* of_device = dynamic_cast<const StreamEvent*>(event->on_device())) {
    of_device->block(stream);
  } else {
    event->wait();
  }
}

}  // namespace rannc::runtime
