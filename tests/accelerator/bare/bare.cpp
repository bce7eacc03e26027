// A third kind of device: the least that torch asks of a backend. Work is done in the calling
// thread, by the CPU's operators, in memory of the host. There is no pinned memory, no allocator
// that could be asked, no name, and its default stream's number is not 0. What runs here leans on
// torch's interface alone. What BARE_LACKS names in the environment it has not, either: "events",
// "times" of them, "streams" beside the default one, "waiting" for it, a "generator"; tensors of
// "bfloat16" and of "float64".
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace rannc::bare {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr int64_t kDefaultStream = 7, kFirstOfPool = 16, kPool = 4;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

thread_local c10::DeviceIndex current = 0;
thread_local std::map<c10::DeviceIndex, int64_t> current_streams;

bool lacks(const char* what) {
  static const char* const all = std::getenv("BARE_LACKS");
  return all != nullptr && std::strstr(all, what) != nullptr;
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current;
}

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* data = bytes > 0 ? std::aligned_alloc(64, rounded) : nullptr;
    if (data != nullptr) std::memset(data, 0xff, rounded);  // NaN
    return {data, data, &std::free, {kType, current}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

Memory& memory() {
  static Memory only;
  return only;
}

/// When it was recorded; all work before that is done.
using Moment = std::chrono::steady_clock::time_point;

/// The base's functions say that a backend has not what they are for.
class Guard final : public c10::impl::DeviceGuardImplInterface {
  using Base = c10::impl::DeviceGuardImplInterface;

 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(index_of(device) < kDevices, "there is no ", device);
    current = index_of(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = index_of(device);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const auto found = current_streams.find(index_of(device));
    return stream(device, found == current_streams.end() ? kDefaultStream : found->second);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(device, kDefaultStream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    if (lacks("streams")) return Base::getStreamFromGlobalPool(device, high_priority);
    static std::atomic<int64_t> taken = 0;
    return stream(device, kFirstOfPool + taken++ % kPool);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, /*high_priority=*/false);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(next.device());
    current_streams[next.device_index()] = next.id();
    return before;
  }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (lacks("waiting")) Base::synchronizeStream(stream);
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    if (lacks("waiting")) Base::synchronizeDevice(index);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    if (lacks("events")) return Base::record(event, stream, index, flag);
    TORCH_CHECK(!lacks("times") || flag == c10::EventFlag::PYTORCH_DEFAULT, "events have no times");
    if (*event == nullptr) *event = new Moment;
    *static_cast<Moment*>(*event) = std::chrono::steady_clock::now();
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Moment*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex index) const override {
    if (lacks("times")) return Base::elapsedTime(from, to, index);
    return std::chrono::duration<double, std::milli>(*static_cast<Moment*>(to) -
                                                     *static_cast<Moment*>(from))
        .count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/,
                             const c10::Stream& /*stream*/) const override {}

 private:
  static c10::Stream stream(c10::Device device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, {kType, index_of(device)}, id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

/// The CPU's numbers.
class Generator final : public at::CPUGeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index) {
    device_ = {kType, index};
    key_set_ = kKeys;
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    if (lacks("generator")) return at::PrivateUse1HooksInterface::getDefaultGenerator(index);
    static const std::vector<at::Generator> all{at::make_generator<Generator>(0),
                                                at::make_generator<Generator>(1)};
    return all.at(static_cast<size_t>(index < 0 ? current : index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr data = memory().allocate(bytes);
    if (storage.data() != nullptr) {
      std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // torch keeps it for good
  c10::SetAllocator(kType, &memory());
  return true;
}();

// Operators that cannot be left to the CPU: what makes tensors, copies them, and looks at them
// anew.

using Sizes = c10::SymIntArrayRef;

at::ScalarType checked(std::optional<at::ScalarType> wanted) {
  const at::ScalarType dtype = c10::dtype_or_default(wanted);
  TORCH_CHECK(dtype != at::kBFloat16 || !lacks("bfloat16"), "there is no bfloat16");
  TORCH_CHECK(dtype != at::kDouble || !lacks("float64"), "there is no float64");
  return dtype;
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(sizes, &memory(), kKeys, checked(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device, std::optional<bool> /*pinned*/) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(sizes, strides, &memory(), kKeys, checked(dtype));
}

/// The same memory as a tensor of the host's.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar(const at::Tensor& tensor) { return on_host(tensor).item(); }

const at::Tensor& resize(const at::Tensor& self, Sizes sizes,
                         std::optional<at::MemoryFormat> /*format*/) {
  const c10::IntArrayRef wanted = C10_AS_INTARRAYREF_SLOW(sizes);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(wanted)) * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(wanted);
  return self;
}

at::Tensor view(const at::Tensor& self, Sizes sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor as_strided(const at::Tensor& self, Sizes sizes, Sizes strides,
                      std::optional<c10::SymInt> offset) {
  std::optional<int64_t> at_element;
  if (offset) at_element = offset->guard_int(__FILE__, __LINE__);
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                           C10_AS_INTARRAYREF_SLOW(strides), at_element);
}

at::Tensor reshape_alias(const at::Tensor& self, Sizes sizes, Sizes strides) {
  return as_strided(self, sizes, strides, self.sym_storage_offset());
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, Sizes sizes,
                        Sizes strides) {
  c10::TensorImpl* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(storage));
  tensor->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                offset.guard_int(__FILE__, __LINE__));
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& other) {
  return set_storage(self, other.storage(), other.sym_storage_offset(), other.sym_sizes(),
                     other.sym_strides());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("resize_", resize);
  library.impl("view", view);
  library.impl("as_strided", as_strided);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
}

void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

}  // namespace
}  // namespace rannc::bare
