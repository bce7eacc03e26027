#include "comm/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "rannc/comm/nccl.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kHowToGet =
    "  torch's builds for CUDA bring it; else pip install nvidia-nccl-cu12 (or -cu13), and name "
    "the file with Config(nccl_library=...) or RANNC_NCCL_LIBRARY. "
    "Config(device_transport='staged') does without it.";

void* open(const std::string& file) {
  if (!file.empty()) return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const loaded = dlopen(kName, RTLD_NOW | RTLD_NOLOAD);
  return loaded != nullptr ? loaded : dlopen(kName, RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

namespace nccl {

std::shared_ptr<const Library> open_library(const std::string& file) {
  auto library = std::make_shared<Library>();
  const std::string name = file.empty() ? kName : file;
  void* const opened = open(file);
  if (opened == nullptr) {
    throw CommError(fmt::format("NCCL cannot be opened: {}\n{}", dlerror(), kHowToGet));
  }
  for_each_function(library->api, [&](const char* function, auto& pointer) {
    void* const found = dlsym(opened, function);
    if (found == nullptr) {
      throw CommError(
          fmt::format("'{}' has no function {}: it is no NCCL of version 2.26 or "
                      "newer.\n{}",
                      name, function, kHowToGet));
    }
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(found);
  });
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<void*>(library->api.get_version), &info) != 0;
  library->file = known && info.dli_fname != nullptr ? info.dli_fname : name;
  if (library->api.get_version(&library->version) != kSuccess) {
    throw CommError(fmt::format("'{}' does not say its version.\n{}", library->file, kHowToGet));
  }
  if (library->version < kOldestVersion) {
    throw CommError(
        fmt::format("NCCL {} ({}) is too old: RaNNC needs {} or newer, which orders "
                    "what several communicators do.\n{}",
                    nccl_version_text(library->version), library->file,
                    nccl_version_text(kOldestVersion), kHowToGet));
  }
  return library;
}

std::string network_interfaces() {
  if (const char* const chosen = std::getenv("NCCL_SOCKET_IFNAME")) {
    return fmt::format("NCCL_SOCKET_IFNAME is '{}'", chosen);
  }
  ifaddrs* all = nullptr;
  std::vector<std::string> names;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      const bool internet = one->ifa_addr != nullptr && (one->ifa_addr->sa_family == AF_INET ||
                                                         one->ifa_addr->sa_family == AF_INET6);
      if (!internet || (one->ifa_flags & IFF_UP) == 0) continue;
      if (std::ranges::find(names, one->ifa_name) == names.end()) names.emplace_back(one->ifa_name);
    }
    freeifaddrs(all);
  }
  // NCCL's order: InfiniBand, others, Docker's, the host's own.
  const auto place = [](std::string_view name) {
    return name.starts_with("ib") ? 0 : name.starts_with("docker") ? 2 : name == "lo" ? 3 : 1;
  };
  std::ranges::stable_sort(names, {}, place);
  if (names.empty()) return "this host has no network interface that is up";
  std::string text = fmt::format("NCCL tries the network interface '{}'", names.front());
  names.erase(names.begin());
  if (!names.empty()) text += fmt::format(" (others here: {})", fmt::join(names, ", "));
  return text;
}

}  // namespace nccl

bool nccl_available() { return true; }

NcclLibrary find_nccl(const std::string& file) {
  const auto library = nccl::open_library(file);
  return {library->file, library->version};
}

std::string nccl_version_text(int version) {
  // Up to 2.8 a digit less for each part.
  const int part = version < 10000 ? 10 : 100;
  return fmt::format("{}.{}.{}", version / (100 * part), version / 100 % part, version % 100);
}

}  // namespace rannc::comm
