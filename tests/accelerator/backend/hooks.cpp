// What torch asks of an accelerator beyond c10's guard, and where it finds the allocators.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "backend/allocator.h"
#include "backend/generator.h"
#include "backend/pinned.h"
#include "backend/storage.h"
#include "machine/accelerator.h"

namespace rannc::standin {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return Accelerator::get().devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return Accelerator::get().device(index).has_context();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(Accelerator::get().devices());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    (void)Accelerator::get().device(index);
    set_current_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override { return PinnedMemory::get().holds(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
  at::Device getDeviceFromPtr(void* data) const override {
    Accelerator& accelerator = Accelerator::get();
    for (int index = 0; index < accelerator.devices(); ++index) {
      if (accelerator.device(index).memory().holds(data)) {
        return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
      }
    }
    TORCH_CHECK(false, "no stand-in device holds the address ", data);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? static_cast<c10::DeviceIndex>(current_device())
                                                   : index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize(storage, bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // torch keeps it for good
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &Allocator::get());
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &PinnedMemory::get());
  return true;
}();

}  // namespace
}  // namespace rannc::standin
