#pragma once

#include <cstdint>

#include "rannc/ir/graph.h"

namespace rannc::cost {

/// What `value` takes of the memory of the device that computes: nothing where it is on the host
/// beside it.
[[nodiscard]] inline int64_t device_bytes(const ir::Value& value, int64_t rows) {
  return value.on_host ? 0 : value.bytes(rows);
}

}  // namespace rannc::cost
