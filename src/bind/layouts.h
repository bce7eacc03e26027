#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rannc/ir/shard.h"

namespace rannc::bind {

/// By name: the dimension, and of each place begin and size of its stretches; none: all have the
/// whole.
using HeldParts =
    std::map<std::string, std::pair<int, std::vector<std::vector<std::pair<int64_t, int64_t>>>>>;

inline ir::Layouts to_layouts(const HeldParts& parts) {
  ir::Layouts layouts;
  for (const auto& [name, part] : parts) {
    ir::Layout& layout = layouts[name];
    layout.dim = part.first;
    for (const auto& stretches : part.second) {
      auto& place = layout.stretches.emplace_back();
      for (const auto& [begin, size] : stretches) place.push_back({begin, size});
    }
  }
  return layouts;
}

}  // namespace rannc::bind
