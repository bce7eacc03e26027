#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

namespace rannc::ops {

/// What the backend of an accelerator offers of c10's interface, of which it has to offer little.
struct Backend {
  bool events = true;        ///< points in the order of a stream
  bool timed_events = true;  ///< that know the time between them
  bool generator = true;     ///< of random numbers, whose state can be taken and put back
};

/// Tried once for each kind of accelerator, at the first use; what is lacking is logged then. Of
/// the CPU, and of no accelerator, all of it.
[[nodiscard]] const Backend& backend_of(c10::Device device);

/// The host waits until the device has done what it was given, or `stream` was. Where a backend
/// cannot be waited for, it has done everything when a call returns.
void wait_for(c10::Device device);
void wait_for(const c10::Stream& stream);

/// A stream beside the current one; the current one of this thread where the backend has no others.
[[nodiscard]] c10::Stream side_stream(c10::Device device);

/// The default one of a device; none where the backend of an accelerator has none.
[[nodiscard]] std::optional<at::Generator> generator_of(c10::Device device);

/// A moment of what a stream is given, for times. Where the backend has no timed events, the time
/// is that of the host's clock when the moment was made.
class Moment {
 public:
  explicit Moment(const c10::Stream& stream);
  [[nodiscard]] bool is_past() const { return event_.query(); }
  void wait() const { event_.synchronize(); }
  /// Both are past.
  [[nodiscard]] int64_t ns_until(const Moment& later) const;

 private:
  c10::Event event_;
  int64_t host_ns_;
};

}  // namespace rannc::ops
