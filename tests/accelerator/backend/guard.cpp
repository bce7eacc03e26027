// What torch asks of a device about devices, streams and events (c10's guard).
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "backend/allocator.h"
#include "machine/accelerator.h"

namespace rannc::standin {
namespace {

struct EventState {
  int device;
  bool timed;
  std::shared_ptr<Mark> mark;
};

EventState& state_of(void* event) { return *static_cast<EventState*>(event); }

c10::Device numbered(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

c10::Stream stream_of(c10::Device device, int64_t id) {
  const int index = device.has_index() ? device.index() : current_device();
  return c10::Stream(c10::Stream::UNSAFE, numbered(index), id);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return numbered(current_device()); }
  void setDevice(c10::Device device) const override {
    if (!device.has_index()) return;
    (void)Accelerator::get().device(device.index());
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(Accelerator::get().devices());
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = device.has_index() ? device.index() : current_device();
    return stream_of(device, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const int index = device.has_index() ? device.index() : current_device();
    return stream_of(device, Accelerator::get().use(index).next_stream(high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, /*high_priority=*/priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    set_current_stream(stream.device_index(), stream.id());
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue(stream); }
  bool queryStream(const c10::Stream& stream) const override { return queue(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    Accelerator& accelerator = Accelerator::get();
    Device& device = accelerator.use(stream.device_index());
    accelerator.wait(*device.queue(stream.id()).mark(), device, "stream");
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    Accelerator& accelerator = Accelerator::get();
    Device& device = accelerator.use(index);
    accelerator.count_wait("device");
    device.drain();
    device.check();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of standin:", int{index},
                " cannot be recorded on a stream of standin:", int{stream.device_index()});
    if (*event == nullptr) {
      *event = new EventState{.device = stream.device_index(),
                              .timed = flag == c10::EventFlag::BACKEND_DEFAULT,
                              .mark = nullptr};
    }
    state_of(*event).mark = queue(stream).mark();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) queue(stream).wait_for(state_of(event).mark);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || state_of(event).mark->reached();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    Accelerator& accelerator = Accelerator::get();
    const EventState& state = state_of(event);
    accelerator.wait(*state.mark, accelerator.use(state.device), "event");
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex /*index*/) const override {
    const EventState& from = state_of(first);
    const EventState& to = state_of(second);
    TORCH_CHECK(from.timed && to.timed, "these events were made without enable_timing=True");
    TORCH_CHECK(from.mark->reached() && to.mark->reached(), "an event has not happened yet");
    return std::chrono::duration<double, std::milli>(to.mark->time() - from.mark->time()).count();
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Allocator::get().recordStream(data, stream);
  }

 private:
  static Queue& queue(const c10::Stream& stream) {
    return Accelerator::get().use(stream.device_index()).queue(stream.id());
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace rannc::standin
