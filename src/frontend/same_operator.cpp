#include "rannc/frontend/same_operator.h"

#include <unordered_map>

namespace rannc::frontend {

std::string same_operator(const std::string& op) {
  static const std::unordered_map<std::string, std::string> kSame{
      // transformers 5, where a device or a dtype has no kernel for torch's.
      {"transformers::grouped_mm_fallback", "aten::_grouped_mm"},
      // pyrannc/capture/values/checks.py: what is looked at goes through unchanged.
      {"rannc::check", "aten::alias"},
  };
  const auto found = kSame.find(op);
  return found == kSame.end() ? "" : found->second;
}

}  // namespace rannc::frontend
