#include "plan/show/stage_names.h"

#include <fmt/format.h>

namespace rannc::plan {

std::string stage_name(const Plan& plan, size_t stage, const StageNotes& notes) {
  if (notes.modules) return *notes.modules;
  const std::vector<std::string>& nodes = plan.stages[stage].nodes;
  if (nodes.empty()) return "nothing";
  if (nodes.size() == 1) return nodes.front();
  if (nodes.size() == 2) return fmt::format("{}, {}", nodes.front(), nodes.back());
  return fmt::format("{} ... {} ({} nodes)", nodes.front(), nodes.back(), nodes.size());
}

std::string folded(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    size_t next = first;
    while (next < numbers.size() && numbers[next] == numbers[first]) ++next;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[first]);
    if (next - first > 1) text += fmt::format(" x {}", next - first);
    first = next;
  }
  return "[" + text + "]";
}

}  // namespace rannc::plan
