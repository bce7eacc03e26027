#include <algorithm>

#include "rannc/ir/rows.h"

namespace rannc::ir {

bool sizes_are_linear(const Graph& graph) {
  const auto is_linear = [](const Value& value) {
    return std::ranges::count_if(value.dims, &AffineInt::depends_on_rows) < 2;
  };
  return std::ranges::all_of(graph.values, is_linear) && row_mixes(graph).empty();
}

}  // namespace rannc::ir
