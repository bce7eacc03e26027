#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace rannc {

/// An index that cannot be mistaken for the index of another kind of thing.
template <class Tag>
struct Id {
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t index = kNone;

  [[nodiscard]] constexpr bool valid() const { return index != kNone; }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

}  // namespace rannc

template <class Tag>
struct std::hash<rannc::Id<Tag>> {
  size_t operator()(const rannc::Id<Tag>& id) const noexcept {
    return std::hash<uint32_t>{}(id.index);
  }
};
