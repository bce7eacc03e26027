#include "rannc/runtime/device_stream.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

#include "rannc/comm/nccl.h"
#include "rannc/ops/backend.h"
#include "rannc/util/error.h"
#include "runtime/device/stream_event.h"
#include "runtime/device_memory.h"

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

class SideStream final : public comm::Stream {
 public:
  explicit SideStream(const c10::Stream& stream) : stream_(stream) {}

  [[nodiscard]] std::shared_ptr<comm::Event> record() override {
    return std::make_shared<StreamEvent>(stream_);
  }
  void wait(comm::Event& event) override { block(stream_, &event); }
  [[nodiscard]] void* native() const override { return stream_.native_handle(); }

 private:
  const c10::Stream stream_;
};

}  // namespace

std::shared_ptr<comm::Stream> device_stream(c10::Device device) {
  if (device.is_cpu()) return comm::make_host_stream();
  return std::make_shared<CurrentStream>(device);
}

std::shared_ptr<comm::Stream> side_stream(c10::Device device) {
  return std::make_shared<SideStream>(ops::side_stream(device));
}

std::shared_ptr<comm::Communicator> nccl(std::shared_ptr<comm::Communicator> host,
                                         c10::Device device, const std::string& library,
                                         bool one_stream, bool order_each) {
  RANNC_CHECK(!device.is_cpu(), device.str());
  const auto use_device = [device] {
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  };
  use_device();  // NCCL takes the current one
  return comm::make_nccl(std::move(host), {.file = library,
                                           .one_stream = one_stream,
                                           .order_each = order_each,
                                           .make_stream = [device] { return side_stream(device); },
                                           .use_device = use_device});
}

void reconnect_nccl(comm::Communicator& communicator, c10::Device device) {
  const auto stream = device_stream(device);
  at::Tensor memory;
  comm::reconnect_nccl(communicator, [&](int64_t bytes) {
    memory = at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    return memory_of(memory, *stream);
  });
}

comm::LinkSpeeds measure_links(comm::Communicator& comm, c10::Device device) {
  if (device.is_cpu()) return comm::measure_links(comm);
  const auto stream = device_stream(device);
  std::vector<at::Tensor> blocks;
  return comm::measure_links(comm, *stream, [&](int64_t bytes) {
    blocks.push_back(at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device)));
    return comm::Buffer{blocks.back().mutable_data_ptr(), bytes, /*ready=*/{}};
  });
}

}  // namespace rannc::runtime
