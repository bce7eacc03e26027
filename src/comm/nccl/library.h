#pragma once

#include <memory>
#include <string>

#include "comm/nccl/api.h"

namespace rannc::comm::nccl {

struct Library {
  Api api{};
  std::string file;
  int version = 0;
};

/// As find_nccl(). A library stays open until the process ends.
[[nodiscard]] std::shared_ptr<const Library> open_library(const std::string& file);

/// Interfaces of this host in the order in which NCCL tries them, and who has chosen; for errors.
[[nodiscard]] std::string network_interfaces();

}  // namespace rannc::comm::nccl
