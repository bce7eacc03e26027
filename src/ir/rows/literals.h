#pragma once

#include <algorithm>
#include <variant>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// Whether an argument is, or lists, an integer that depends on the rows.
[[nodiscard]] inline bool is_row_dependent_literal(const Argument& argument) {
  if (const auto* integer = std::get_if<AffineInt>(&argument)) return integer->depends_on_rows();
  const auto* integers = std::get_if<std::vector<AffineInt>>(&argument);
  return integers != nullptr && std::ranges::any_of(*integers, &AffineInt::depends_on_rows);
}

[[nodiscard]] inline bool has_row_dependent_literal(const Node& node) {
  return std::ranges::any_of(node.inputs, is_row_dependent_literal);
}

}  // namespace rannc::ir
