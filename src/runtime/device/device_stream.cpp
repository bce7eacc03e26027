#include "rannc/runtime/device_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/device/stream_event.h"

namespace rannc::runtime {
namespace {

class CurrentStream final : public comm::Stream {
 public:
  explicit CurrentStream(c10::Device device) : device_(device), guard_(device.type()) {}

  [[nodiscard]] std::shared_ptr<comm::Event> record() override {
    return std::make_shared<StreamEvent>(guard_.getStream(device_));
  }
  void wait(comm::Event& event) override { block(guard_.getStream(device_), &event); }

 private:
  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
};

}  // namespace

std::shared_ptr<comm::Stream> device_stream(c10::Device device) {
  if (device.is_cpu()) return comm::make_host_stream();
  return std::make_shared<CurrentStream>(device);
}

}  // namespace rannc::runtime
