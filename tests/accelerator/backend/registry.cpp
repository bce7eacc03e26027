// Which kernel each operator has on the stand-in devices.
#include <deque>
#include <unordered_set>

#include "backend/autocast.h"
#include "backend/by_hand.h"
#include "backend/operator.h"

namespace rannc::standin {
namespace {

using c10::DispatchKey;
using c10::KernelFunction;

class Registry {
 public:
  Registry() {
    fallback(DispatchKey::PrivateUse1, KernelFunction::makeFromBoxedFunction<&issue>());
    fallback(DispatchKey::AutocastPrivateUse1, KernelFunction::makeFallthrough());
    std::unordered_set<c10::OperatorName> done;
    for (const auto& group : {views(), copies(), layers()}) {
      for (const ByHand& kernel : group) {
        const std::string name = std::string("aten::") + kernel.name;
        const size_t dot = name.find('.');
        const c10::OperatorName op(name.substr(0, dot),
                                   dot == std::string::npos ? "" : name.substr(dot + 1));
        add(op, DispatchKey::PrivateUse1, kernel.kernel);
        done.insert(op);
      }
    }
    // Composites are the CPU's only where they are tried before the fallback, so what has a kernel
    // of the CPU gets its kernel by name.
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op || !name.name.starts_with("aten::")) continue;
      if (op->hasKernelForDispatchKey(DispatchKey::CPU) && !done.contains(name)) {
        add(name, DispatchKey::PrivateUse1, KernelFunction::makeFromBoxedFunction<&issue>());
      }
      if (op->hasKernelForDispatchKey(DispatchKey::AutocastCPU)) {
        add(name, DispatchKey::AutocastPrivateUse1, KernelFunction::makeFromBoxedFunction<&cast>());
      }
    }
  }

 private:
  void fallback(DispatchKey key, KernelFunction kernel) {
    held_.push_back(
        c10::Dispatcher::singleton().registerFallback(key, std::move(kernel), "stand-in"));
  }
  void add(const c10::OperatorName& name, DispatchKey key, KernelFunction kernel) {
    held_.push_back(c10::Dispatcher::singleton().registerImpl(name, key, std::move(kernel),
                                                              std::nullopt, nullptr, "stand-in"));
  }

  std::deque<c10::RegistrationHandleRAII> held_;
};

[[maybe_unused]] const auto* const registry = new Registry;  // for good, as torch's own

}  // namespace
}  // namespace rannc::standin
