#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace rannc::standin {

/// An operator that `issue` cannot do.
struct ByHand {
  const char* name;
  c10::KernelFunction kernel;
};

[[nodiscard]] std::vector<ByHand> views();   ///< what makes tensors without computing
[[nodiscard]] std::vector<ByHand> copies();  ///< between host and devices
[[nodiscard]] std::vector<ByHand> layers();  ///< what torch calls otherwise on foreign devices

}  // namespace rannc::standin
