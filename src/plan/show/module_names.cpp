#include "rannc/plan/module_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

namespace rannc::plan {
namespace {

using Counts = std::unordered_map<std::string_view, int>;

std::string_view parent(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

/// Operators in each module and below it.
Counts count(const std::vector<std::string>& paths) {
  Counts counts;
  for (std::string_view path : paths) {
    for (;; path = parent(path)) {
      ++counts[path];
      if (path.empty()) break;
    }
  }
  return counts;
}

struct Numbered {
  std::string_view prefix;  // "layers."
  int number;
};
std::optional<Numbered> numbered(std::string_view path) {
  const size_t dot = path.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? path : path.substr(dot + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), number);
  if (error != std::errc() || end != last.data() + last.size()) return std::nullopt;
  return Numbered{path.substr(0, path.size() - last.size()), number};
}

/// "layers.0", "layers.1", "layers.2" -> "layers.0-2".
std::vector<std::string> fold(const std::vector<std::string_view>& paths) {
  std::vector<std::string> folded;
  for (size_t first = 0; first < paths.size();) {
    size_t next = first + 1;
    const auto start = numbered(paths[first]);
    while (start && next < paths.size()) {
      const auto other = numbered(paths[next]);
      const int expected = start->number + static_cast<int>(next - first);
      if (!other || other->prefix != start->prefix || other->number != expected) break;
      ++next;
    }
    folded.push_back(next - first == 1
                         ? std::string(paths[first])
                         : fmt::format("{}-{}", paths[first], numbered(paths[next - 1])->number));
    first = next;
  }
  return folded;
}

}  // namespace

ModuleNames::ModuleNames(const std::vector<std::string>& all) : total_(count(all)) {}

std::string ModuleNames::of(const std::vector<std::string>& mine, size_t most) const {
  const Counts held = count(mine);
  const auto is_whole = [&](std::string_view path) { return held.at(path) == total_.at(path); };

  std::vector<std::string_view> whole, parts;
  std::unordered_set<std::string_view> seen, with_whole_child;
  for (std::string_view path : mine) {
    const bool in_part = !is_whole(path);
    while (!path.empty() && is_whole(path) && is_whole(parent(path))) path = parent(path);
    if (!seen.insert(path).second) continue;
    (in_part ? parts : whole).push_back(path);
    for (; !in_part && !path.empty(); path = parent(path)) with_whole_child.insert(parent(path));
  }
  // Operators between whole modules, such as a residual sum, are not worth a name of their own.
  std::erase_if(parts, [&](std::string_view path) { return with_whole_child.contains(path); });

  std::vector<std::string> names = fold(whole);
  for (std::string_view path : parts) {
    names.push_back(fmt::format("{} (part)", path.empty() ? "model" : path));
  }
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", names[i].empty() ? "model" : names[i]);
  }
  return names.size() <= most ? text : fmt::format("{} and {} more", text, names.size() - most);
}

std::string number_ranges(std::vector<int> numbers) {
  std::ranges::sort(numbers);
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[first]);
    if (last > first) text += fmt::format("-{}", numbers[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace rannc::plan
