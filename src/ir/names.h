#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// The names of enumerators in files, in the order of the enumerators.
inline constexpr std::array<std::string_view, 5> kValueKindNames{"input", "parameter", "buffer",
                                                                 "constant", "result"};
inline constexpr std::array<std::string_view, 3> kOpKindNames{"dispatcher", "scripted", "python"};
inline constexpr std::array<std::string_view, 5> kRowKindNames{"none", "apart", "mean", "sum",
                                                               "mixed"};

template <class Enum, size_t N>
constexpr std::string_view name_of(Enum value, const std::array<std::string_view, N>& names) {
  return names.at(static_cast<size_t>(value));
}

template <class Enum, size_t N>
std::optional<Enum> enum_from_name(std::string_view name,
                                   const std::array<std::string_view, N>& names) {
  for (size_t index = 0; index < N; ++index) {
    if (names[index] == name) return static_cast<Enum>(index);
  }
  return std::nullopt;
}

/// One line of the text form, without indentation and line end.
[[nodiscard]] std::string value_line(const Graph& graph, ValueId id);
[[nodiscard]] std::string node_line(const Graph& graph, NodeId id, bool with_source);
[[nodiscard]] std::string header_line(const Graph& graph);
}  // namespace rannc::ir
