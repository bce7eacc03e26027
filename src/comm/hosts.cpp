#include "rannc/comm/hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

namespace rannc::comm {

Host own_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return {"localhost", {}};
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> network{};  // such as net:[4026531840]
  if (readlink("/proc/self/ns/net", network.data(), network.size() - 1) < 0) network[0] = '\0';
  return {name.data(), boot + network.data()};
}

std::vector<std::string> distinct_names(const std::vector<Host>& hosts) {
  std::map<std::string, std::vector<std::string>> identities;  // by name
  std::vector<std::string> names;
  for (const Host& host : hosts) {
    std::vector<std::string>& known = identities[host.name];
    const auto found = std::ranges::find(known, host.identity);
    const auto number = found - known.begin() + 1;
    if (found == known.end()) known.push_back(host.identity);
    names.push_back(number == 1 ? host.name : fmt::format("{} ({})", host.name, number));
  }
  return names;
}

}  // namespace rannc::comm
