#include "frontend/squeezes.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace rannc::frontend {
namespace {

constexpr std::array<std::string_view, 6> kSqueezes{
    "aten::squeeze",  "aten::squeeze.dim",  "aten::squeeze.dims",
    "aten::squeeze_", "aten::squeeze_.dim", "aten::squeeze_.dims",
};

/// The dimensions that `node` names, all when it names none; counted from the first.
std::vector<int64_t> asked(const ir::Node& node, int64_t rank) {
  std::vector<int64_t> found;
  if (node.inputs.size() == 1) {
    for (int64_t dim = 0; dim < rank; ++dim) found.push_back(dim);
  } else if (const auto* dim = std::get_if<ir::AffineInt>(&node.inputs[1])) {
    found.push_back(dim->fixed);
  } else {
    for (const auto& dim : std::get<std::vector<ir::AffineInt>>(node.inputs[1])) {
      found.push_back(dim.fixed);
    }
  }
  for (int64_t& dim : found) dim = dim < 0 ? dim + rank : dim;
  return found;
}

}  // namespace

void name_squeezed(ir::Node& node, const std::vector<ir::AffineInt>& dims) {
  if (std::ranges::find(kSqueezes, node.op) == kSqueezes.end()) return;
  std::vector<ir::AffineInt> gone;
  if (!dims.empty()) {
    for (int64_t dim : asked(node, static_cast<int64_t>(dims.size()))) {
      if (dims[static_cast<size_t>(dim)] == ir::AffineInt{1, 0}) gone.push_back({dim, 0});
    }
  }
  node.op = node.op.substr(0, node.op.find('.')) + ".dims";
  node.inputs = {node.inputs[0], gone};
}

}  // namespace rannc::frontend
