#include "rannc/ops/backend.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "rannc/util/log.h"

namespace rannc::ops {
namespace {

using c10::impl::VirtualGuardImpl;

/// Something for each kind of device, made when it is first asked for.
template <class T>
class OfEachKind {
 public:
  template <class Make>
  const T& get(c10::DeviceType kind, Make&& make) {
    Entry& entry = entries_.at(static_cast<size_t>(kind));
    std::call_once(entry.once, [&] { entry.value = make(); });
    return entry.value;
  }

 private:
  struct Entry {
    std::once_flag once;
    T value{};
  };
  std::array<Entry, static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)> entries_;
};

/// Why `call` cannot be; empty if it can.
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
    return {};
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    return what.substr(0, what.find('\n'));
  } catch (const std::exception& error) {
    return error.what();
  }
}

c10::Stream current_stream(c10::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

/// Whether the device gets to `event` soon. It is asked again and again, not waited for: the first
/// use may come where nothing may be waited for.
bool comes(const c10::Event& event) {
  /// The longest that a device may take for what it was given before.
  /// tuned by: a safety margin: a step's work before the first plan; then timed events are taken
  /// to work.
  /// without it: a device that never gets to an event holds the job here, without a word.
  constexpr auto kLongestTrial = std::chrono::seconds(1);
  const auto end = std::chrono::steady_clock::now() + kLongestTrial;
  while (!event.query()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

void tell(c10::Device device, const char* lacks, const std::string& why, const char* then) {
  log::warn("runtime", c10::str("the backend of ", c10::DeviceTypeName(device.type(), true),
                                " has no ", lacks, " (", why, "): ", then));
}

Backend try_out(c10::Device device) {
  Backend backend;
  std::string why = refusal([&] {
    c10::Event event(device.type());
    event.record(current_stream(device));
    (void)event.query();
  });
  if (!why.empty()) {
    backend.events = backend.timed_events = false;
    tell(device, "events", why,
         "where one stream would wait for another the host waits, and times are by its clock");
  } else {
    why = refusal([&] {
      c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      begin.record(current_stream(device));
      end.record(current_stream(device));
      if (comes(end)) (void)begin.elapsedTime(end);
    });
    backend.timed_events = why.empty();
    if (!why.empty()) tell(device, "timed events", why, "times are by the host's clock");
  }
  why = refusal([&] {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    (void)generator.get_state();
  });
  backend.generator = why.empty();
  if (!why.empty()) {
    tell(device, "generator of random numbers", why,
         "those that are drawn again are the same only if it draws from the host's");
  }
  return backend;
}

/// How the host waits for a kind of device.
enum class Waiting { nothing, for_device, for_event, for_stream };

void wait_by(Waiting how, const c10::Stream& stream) {
  const VirtualGuardImpl guard(stream.device_type());
  switch (how) {
    case Waiting::nothing:
      return;
    case Waiting::for_device:
      return guard.synchronizeDevice(stream.device_index());
    case Waiting::for_stream:
      return guard.synchronizeStream(stream);
    case Waiting::for_event: {
      c10::Event event(stream.device_type());
      event.record(stream);
      return event.synchronize();
    }
  }
}

/// The first of these ways that the backend offers.
Waiting way_to_wait(const c10::Stream& stream, std::initializer_list<Waiting> ways) {
  for (const Waiting how : ways) {
    if (refusal([&] { wait_by(how, stream); }).empty()) return how;
  }
  // Where there are events, the device itself has failed, which waiting for one says.
  return backend_of(stream.device()).events ? Waiting::for_event : Waiting::nothing;
}

int64_t host_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

const Backend& backend_of(c10::Device device) {
  static OfEachKind<Backend> known;
  static const Backend host;
  if (device.is_cpu() || device.is_meta()) return host;
  return known.get(device.type(), [&] { return try_out(device); });
}

void wait_for(c10::Device device) {
  static OfEachKind<Waiting> known;
  if (device.is_cpu()) return;
  const c10::Stream stream = current_stream(device);
  wait_by(known.get(device.type(),
                    [&] {
                      return way_to_wait(
                          stream, {Waiting::for_device, Waiting::for_event, Waiting::for_stream});
                    }),
          stream);
}

void wait_for(const c10::Stream& stream) {
  static OfEachKind<Waiting> known;
  if (stream.device().is_cpu()) return;
  wait_by(known.get(stream.device_type(),
                    [&] {
                      return way_to_wait(
                          stream, {Waiting::for_stream, Waiting::for_event, Waiting::for_device});
                    }),
          stream);
}

c10::Stream side_stream(c10::Device device) {
  static OfEachKind<bool> known;
  const VirtualGuardImpl guard(device.type());
  const bool there = known.get(device.type(), [&] {
    const std::string why =
        refusal([&] { (void)guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true); });
    if (!why.empty())
      tell(device, "streams to spare", why, "messages are copied on the one it has");
    return why.empty();
  });
  return there ? guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true)
               : guard.getStream(device);
}

std::optional<at::Generator> generator_of(c10::Device device) {
  if (!backend_of(device).generator) return {};
  return at::globalContext().defaultGenerator(device);
}

Moment::Moment(const c10::Stream& stream)
    : event_(stream.device_type(), backend_of(stream.device()).timed_events
                                       ? c10::EventFlag::BACKEND_DEFAULT
                                       : c10::EventFlag::PYTORCH_DEFAULT),
      host_ns_(host_ns()) {
  // An event that was never recorded is past, and nobody waits for it.
  if (backend_of(stream.device()).events) event_.record(stream);
}

int64_t Moment::ns_until(const Moment& later) const {
  if (event_.flag() != c10::EventFlag::BACKEND_DEFAULT) return later.host_ns_ - host_ns_;
  return std::max<int64_t>(std::llround(event_.elapsedTime(later.event_) * 1e6), 0);
}

}  // namespace rannc::ops
